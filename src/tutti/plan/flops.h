// plan/flops.h: FLOPs of a token by formula: the numerator of MFU.
//
// A multiply and an add are two FLOPs. Only matrix products and attention count, as everywhere in the field: norms,
// activations, short convolutions, softmax and the optimizer are left out. Conventions and sources: PaLM (Chowdhery et
// al. 2022, app. B), Korthikanti et al. 2022, llm.c; see docs/design.md.
#pragma once

#include <cstdint>
#include <string>

#include "tutti/spec/model_spec.h"

namespace tutti::plan {

// FLOPs of one token. Attention has two conventions: `full` counts every key of the sequence for every query (PaLM,
// torchtitan), `causal` the half that a causal mask leaves (llm.c, Megatron from 0.12). Tutti's MFU is the causal one.
struct TokenFlops {
    double matmul = 0;
    double full_attention = 0;

    double full() const { return matmul + full_attention; }
    double causal() const { return matmul + full_attention / 2; }
    bool operator==(const TokenFlops&) const = default;
};

// Forward: 2 N_matmul + 4 L s H D with full attention (scores and weighted values: 2 s H D each, per layer). N_matmul:
// values of all matrices in matrix products, each once for each product; the head also when tied, of a mixture of
// experts the router and the top_k experts of a token; not embedding, biases, norm weights and positions. With a window
// W < s, 2 W - W^2 / s replaces s in the windowed layers: the keys within W of a query on both sides, of which
// causal is again half.
TokenFlops forward_flops(const spec::ModelSpec& model, int64_t seq_len);

// Forward and backward, three times the forward: 6 N_matmul + 12 L s H D full, + 6 L s H D causal. These are the FLOPs
// of MFU, with the input gradient of the first layer, as in the formulas of the field.
TokenFlops model_flops(const spec::ModelSpec& model, int64_t seq_len);

// FLOPs of HFU: recomputed ones included. Segments of any length run the forward of all blocks once more; embedding and
// head are not recomputed.
TokenFlops hardware_flops(const spec::ModelSpec& model, int64_t seq_len, const std::string& recompute_policy);

// Model FLOP utilisation as a share (0.37, not 37): flops_per_token * tokens_per_s / peak_flops. `peak_flops` is the
// dense peak of the compute type in FLOP/s, of all ranks together when tokens_per_s is. With hardware_flops() the
// result is HFU.
double mfu(double flops_per_token, double tokens_per_s, double peak_flops);

}  // namespace tutti::plan
