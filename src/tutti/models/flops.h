// models/flops.h: the parameters of a model and the FLOPs of a token, counted from the modules: the numerator of MFU.
//
// A multiply and an add are two FLOPs. Only matrix products and attention count, as everywhere in the field: norms,
// activations, short convolutions, softmax and the optimizer are left out. Conventions and sources: PaLM (Chowdhery et
// al. 2022, app. B), Korthikanti et al. 2022, llm.c; see docs/design.md.
#pragma once

#include <cstdint>
#include <string>

#include "tutti/models/model.h"

namespace tutti::models {

// Exact number of values. A tied matrix counts once; expert biases, which no gradient trains, do not count.
int64_t parameter_count(const Model& model);
int64_t parameter_count(const spec::ModelSpec& spec);  // of its outline()
// The values that one token uses: top_k experts of each mixture, and everything else.
int64_t active_parameter_count(const Model& model);

// FLOPs of one token. Attention has two conventions: `full` counts every key of the sequence for every query (PaLM,
// torchtitan), `causal` the half that a causal mask leaves (llm.c, Megatron from 0.12). Tutti's MFU is the causal one.
struct TokenFlops {
    double matmul = 0;
    double full_attention = 0;

    double full() const { return matmul + full_attention; }
    double causal() const { return matmul + full_attention / 2; }
    bool operator==(const TokenFlops&) const = default;
};

// Forward FLOPs in the products of a module with one of its parameters: 2 for each value of a matrix, of a mixture of
// experts for those of the top_k experts of a token. 0 for biases, norm weights, taps of convolutions, and a matrix
// whose rows are looked up: an embedding, but not the head that is tied to it.
double product_flops(const Model& model, const autograd::Unit& unit, const autograd::Parameter& parameter);

// Forward: 2 N_matmul + 4 s H D for each layer with full attention (scores and weighted values: 2 s H D each), from
// product_flops() and Unit::attention. With a window W < s, 2 W - W^2 / s replaces s: the keys within W of a query on
// both sides, of which causal is again half.
TokenFlops forward_flops(const Model& model, const autograd::Unit& unit, int64_t seq_len);
TokenFlops forward_flops(const Model& model, int64_t seq_len);

// Forward and backward, three times the forward: 6 N_matmul + 12 L s H D full, + 6 L s H D causal. These are the FLOPs
// of MFU, with the input gradient of the first layer, as in the formulas of the field.
TokenFlops model_flops(const Model& model, int64_t seq_len);

// FLOPs of HFU: recomputed ones included. Segments of any length run the forward of all blocks once more; the first and
// the last module are not recomputed.
TokenFlops hardware_flops(const Model& model, int64_t seq_len, const std::string& recompute_policy);

// What a run's card and its files say of the model.
struct ModelCounts {
    int64_t parameters = 0, active = 0;
    TokenFlops model, hardware;  // of a token, forward and backward
};
ModelCounts counts_of(const Model& model, int64_t seq_len, const std::string& recompute_policy);

// Model FLOP utilisation as a share (0.37, not 37): flops_per_token * tokens_per_s / peak_flops. `peak_flops` is the
// dense peak of the compute type in FLOP/s, of all ranks together when tokens_per_s is. With hardware_flops() the
// result is HFU.
double mfu(double flops_per_token, double tokens_per_s, double peak_flops);

}  // namespace tutti::models
