// simulate/job.h: a training run of this system as the closed formulas see it: the sizes of a model and a layout.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tutti/spec/run_spec.h"

namespace tutti::simulate {

enum class Recompute { none, selective, full };

// How the ranks of a sequence exchange keys and values: around a ring; by a gather; or by exchanging heads for tokens
// (Ulysses).
enum class Context { ring, all_gather, ulysses };

// Bytes of a value that AdamW keeps, its moments.
double adamw_bytes();

// State and saved tensors in the memory of the host. Weights: of ZeRO-3.
struct Offload {
    bool optimizer = false, weights = false, activations = false;
    bool any() const { return optimizer || weights || activations; }
    bool operator==(const Offload&) const = default;
};

// As in a config: ring, all_gather, ulysses; none, selective, full.
const char* name_of(Context method);
const char* name_of(Recompute recompute);

struct Sizes {
    double layers = 0, hidden = 0, ffn = 0, heads = 0, kv_heads = 0, head_dim = 0, vocab = 0;
    int mlp_matrices = 3;  // 3: gated (SwiGLU), 2: GELU, squared ReLU
    bool tied = false;
    double window = 0, window_layers = 0;  // a sliding window, in how many layers
    double experts = 0, top_k = 0, expert_ffn = 0, shared_ffn = 0, expert_layers = 0;

    double mixtures() const { return experts > 0 ? expert_layers : 0; }  // layers with experts
    // Keys that a query of a sequence of `seq` tokens would see without the causal mask, mean over the layers.
    double attention_span(double seq) const;

    double attention_parameters() const;  // of a layer
    double mlp_parameters() const;        // of a dense layer
    double expert_parameters() const;     // of one expert
    double parameters() const;            // of all, embeddings included
    double active_parameters() const;     // that take part in products for one token, the head included
};

struct Job {
    Sizes model;
    double seq = 0, micro_batch = 1, global_batch = 1;
    int ranks = 1, tp = 1, cp = 1, pp = 1, virtual_stages = 1, ep = 1, etp = 1;
    Context cp_method = Context::ring;
    int cp_ulysses = 1;  // ranks of cp that exchange heads for tokens inside a ring or gather; 1 with Context::ulysses
    int dp_replicate = 1;  // HSDP: so many of the data-parallel ranks hold copies
    bool sequence_parallel = true;
    int zero = 1;
    Recompute recompute = Recompute::none;
    std::string schedule = "1f1b";   // or gpipe, interleaved, zb-h1, zb-v, ...
    std::string precision = "bf16";  // fp32, tf32, bf16
    bool tp_overlap = false;         // tensor-parallel products in pieces, communicated while others are computed
    bool token_drop = false;         // experts take equal, padded loads
    double imbalance = 0;            // tokens of the fullest rank's experts over the mean; 0: 1
    Offload offload;
    double gradient_bytes = 4, reduced_bytes = 4;  // of an accumulated gradient, and of one on its way
    double rule_bytes = adamw_bytes();             // of a value, that the update rule keeps
    bool masters = true;                           // of 16-bit weights

    bool wide() const { return precision == "fp32" || precision == "tf32"; }  // values of 4 bytes, no other masters
    bool has_masters() const { return masters && !wide(); }
    double optimizer_bytes() const { return rule_bytes + (has_masters() ? 4 : 0); }  // of a value: also its f32 master
    // Of a value between its uses: ZeRO-3 keeps masters alone.
    double weight_bytes() const {
        const bool gathered = zero >= 3 && has_masters() && !offload.optimizer && !offload.weights;
        return gathered ? 0 : wide() ? 4 : 2;
    }
    int exchanging() const { return cp_method == Context::ulysses ? cp : cp_ulysses; }  // ranks that exchange heads
    int dp() const { return ranks / (tp * cp * pp); }
    double microbatches() const { return global_batch / (micro_batch * dp()); }
    bool mixture() const { return model.experts > 0; }
};

// FLOPs of the model for one token: forward and backward, causal attention and full attention.
struct TokenFlops {
    double products = 0, full_attention = 0;
    double causal() const { return products + full_attention / 2; }
    double full() const { return products + full_attention; }
};
TokenFlops token_flops(const Job& job);

Sizes sizes_of(const spec::ModelSpec& model);
// A run of this system, validated for so many ranks.
Job job_of(const spec::RunSpec& run, int ranks);

// Job::imbalance of `ep` ranks that hold the experts in order, from the load of each expert in any unit; 0 without
// loads.
double imbalance_of(std::span<const double> loads, int ep);
// The rank among them whose experts have the most.
int fullest_rank(std::span<const double> loads, int ep);

// The problem of the layout: "tp 8 does not divide 12 heads"; "" when there is none.
std::string layout_problem(const Job& job);

}  // namespace tutti::simulate
