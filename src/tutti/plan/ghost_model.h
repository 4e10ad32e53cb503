// plan/ghost_model.h: the models of models/ as sizes: one forward records on a GhostTape what the real one records on a
// Tape. Below: ghost_tape.h. memory.cpp runs it.
#pragma once

#include <cstdint>
#include <functional>

#include "tutti/base/product.h"
#include "tutti/plan/ghost_tape.h"
#include "tutti/spec/model_spec.h"

namespace tutti::plan {

// Bytes beside the operands of a product.
struct GemmBytes {
    int64_t workspace = 0;
    int64_t packed_b = 0;  // of the weight, where it is kept packed
};

// Bytes of scratch that the back end asks for.
struct Workspaces {
    int64_t attention_forward = 0;   // KernelTable::attention_workspace, for one call
    int64_t attention_backward = 0;  // likewise
    int64_t stream = 0;              // Stream::workspace_bytes, for the whole run
    // Of a product; `keeps`: its weight may be kept packed. Absent: nothing.
    std::function<GemmBytes(Product, int64_t rows, int64_t out, int64_t in, bool keeps)> gemm = {};
};

// What one rank holds of one microbatch and of the model. Each parallel axis divides its own field: cp the sequence, tp
// the heads, kv_heads, ffn and vocab, pp the layers; the width stays whole.
struct LocalSizes {
    spec::Family family = spec::Family::llama;
    int64_t element = 2;  // bytes of a value in the compute type
    int64_t batch = 1, sequence = 1;
    int64_t width = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0, vocab = 0, layers = 0;
    bool dropout = false, head_norm = false;
    bool keeps_packed = false;  // weights, from one microbatch to the next
    Workspaces workspaces;

    int64_t rows() const { return batch * sequence; }
};

LocalSizes local_sizes(const spec::ModelSpec& model, int64_t batch, int64_t sequence, int64_t element_bytes,
                       const Workspaces& workspaces);

// Of all weights that the model's products keep packed.
int64_t packed_weights_bytes(const LocalSizes& sizes);

// models::Model::forward with targets: returns the losses. `features` is the input of the mlp family, undefined
// elsewhere. `segment` > 0: every run of that many blocks is recomputed.
GhostVar forward(GhostTape& tape, const LocalSizes& sizes, const Ghost& features, int64_t segment);

}  // namespace tutti::plan
