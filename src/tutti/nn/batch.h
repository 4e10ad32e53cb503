// nn/batch.h: what a forward reads besides its input: tokens, their global places, and the cache when text is
// generated. The same Batch goes to every unit of a model, on every pipeline stage.
#pragma once

#include <span>
#include <vector>

#include "tutti/tensor/tensor.h"

namespace tutti::comm {
class Communicator;
}

namespace tutti::nn {

// Keys and values of one sequence's tokens so far, one pair per layer: (1, Tmax, Hkv, D). A sequence has a cache of its
// own, so that a batch may hold sequences of any lengths and lose those that are finished: there is no padding.
struct KvCache {
    std::vector<Tensor> keys, values;
    int64_t length = 0;  // tokens that all layers hold
};

struct Batch {
    Tensor tokens;     // (B, T) i32
    Tensor targets;    // (B, T) i32; negative: not counted. Undefined: the head returns logits of the last position
    Tensor positions;  // (B, T) i32: place in the sequence, or in its document
    Tensor first_key;  // (B, T) i32: where in the sequence a token's document begins. Undefined: all is one document
    Tensor row_index;  // (B, T) i64: global index of the token in the step's batch; keys dropout
    Tensor features, feature_targets;  // (N, D): the mlp family instead of tokens
    float grad_scale = 1;              // 1 / valid tokens of the global batch: the loss is a mean over all of them
    uint64_t seed = 0;
    uint64_t step = 0;
    std::vector<KvCache*> caches;  // one per sequence, or none
    // Ranks that share out the sequences (context parallelism): the tensors are this rank's chunks (SequencePart).
    // Null: whole sequences.
    comm::Communicator* context_ranks = nullptr;
};

// A batch on the host, (sequences, T) each, sequence after sequence.
struct BatchRows {
    std::span<const int32_t> tokens, targets;
    std::span<const int32_t> first_key;  // empty: each sequence is one document
};

// What rank `rank` of `ranks` has of each sequence: chunks `rank` and 2 ranks - 1 - rank of 2 ranks equal ones, as ring
// attention wants them (ring_attention.h).
struct SequencePart {
    int rank = 0, ranks = 1;
};

// `first_sequence` is the global index in the step's batch of the first one. Positions restart with each document.
Batch make_batch(Device& device, const BatchRows& rows, int64_t sequences, int64_t first_sequence,
                 const SequencePart& part = {});

// From `sequences` windows of T + 1 tokens each, one after another: inputs are the first T, targets the last T of each.
Batch make_batch(Device& device, std::span<const int32_t> windows, int64_t sequences, int64_t first_sequence);

// Of x (B, T, ...): row B T r / P and the B T / P - 1 after it, as (B, T / P, ...); what rank r of P has of a sequence
// between tensor-parallel products. P divides T. Shares memory.
Tensor rows_of(const Tensor& x, int rank, int ranks);

// Tokens without targets, for generation: (B, T) from the start of each sequence.
Batch make_prompt(Device& device, std::span<const int32_t> tokens, int64_t sequences);
// The same, for sequences that go on: the tokens of sequence b follow those that caches[b] holds, and the forward puts
// them in. advance() then counts them, when all layers have run.
Batch make_continuation(Device& device, std::span<const int32_t> tokens, std::vector<KvCache*> caches);
void advance(const Batch& batch);

}  // namespace tutti::nn
