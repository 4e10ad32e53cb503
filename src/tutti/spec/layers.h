// spec/layers.h: a model layer by layer: what each of them does, from the fields of ModelSpec and the traits of the
// family; lists of layers as text; and recompute in the backward (recompute.policy).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "tutti/spec/families.h"

namespace tutti::spec {

struct LayerRange {
    int64_t first, last;  // both inclusive
    bool operator==(const LayerRange&) const = default;
};

// The layers for which `listed` is true.
std::vector<LayerRange> layer_ranges(const std::vector<bool>& listed);
// "0,2-5" as ranges in rising order that do not touch; "" is none. "5-2" is valid. UsageError for any other text.
std::vector<LayerRange> layer_ranges(const std::string& text);
// The inverse of layer_ranges().
std::string to_text(const std::vector<LayerRange>& ranges);
// "1,1.25" as numbers, and back, with the fewest digits that read back to the same bits; UsageError for other text.
std::vector<double> number_list(const std::string& text);
std::string list_text(const std::vector<double>& numbers);

// What one layer does: how it mixes tokens, and what it does with each of them. Models, costs and rules read this, and
// no family's name.
struct RopeSpec {
    double theta = 10000;
    int64_t dims = 0;  // channels of a head that are rotated, the first ones
    bool adjacent = false;
    RopeScaling scaling;
    double query_growth = 0;
    bool operator==(const RopeSpec&) const = default;
};
struct LatentSpec {         // channels, see ModelSpec::kv_latent
    int64_t kv = 0, q = 0;  // q 0: queries have no latent
    double norm_eps = 1e-6;
    bool operator==(const LatentSpec&) const = default;
};
struct AttentionSpec {
    int64_t heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0;
    std::optional<LatentSpec> latent;  // keys, values and queries are made from
    int64_t window = 0;                // the newest keys that a query attends to; 0: all keys
    bool bias = false;                 // on queries, keys and values
    bool output_bias = false;
    bool head_norm = false;   // RMS norm of each query and key head
    bool width_norm = false;  // RMS norm of all queries, and of all keys, of a token
    double score_scale = 0;   // 0: head_dim^(-1/2)
    double score_cap = 0;     // 0: none
    double output_scale = 1;  // of what the output projection returns
    bool sinks = false;
    bool output_gate = false;      // times the sigmoid of a projection of the input
    std::optional<RopeSpec> rope;  // none: no rotary positions
    bool operator==(const AttentionSpec&) const = default;
};
struct ConvolutionSpec {  // gated and short (nn::short_convolution)
    int64_t kernel = 0;
    bool bias = false;  // on the convolution and on the projections before and after it
    bool operator==(const ConvolutionSpec&) const = default;
};
struct DeltaSpec {  // the gated delta rule behind short convolutions (nn::delta_rule)
    int64_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
    int64_t kernel = 0;  // of the convolutions
    bool operator==(const DeltaSpec&) const = default;
};
struct ScanSpec {  // of Mamba-2, behind a short convolution
    int64_t heads = 0, head_dim = 0, groups = 0, state = 0;
    int64_t kernel = 0;  // of the convolution
    bool conv_bias = false;
    double step_min = 0, step_max = 0;               // 0: none
    std::string norm = "gated";                      // as ModelSpec::scan_norm
    std::array<double, 5> scales = {1, 1, 1, 1, 1};  // of z, x, B, C and dt
    double output_scale = 1;
    bool operator==(const ScanSpec&) const = default;
};
struct BesideSpec {  // both, of one input; their results are added
    AttentionSpec attention;
    ScanSpec scan;
    bool operator==(const BesideSpec&) const = default;
};
struct GateSpec {
    std::string name = "silu";
    double limit = 0;   // of clamped
    bool gated = true;  // W_down (g(W_gate x) * W_up x); false: W_out gelu(W_in x), or W_down relu(W_up x)^2
    bool operator==(const GateSpec&) const = default;
};
struct MlpSpec {
    int64_t ffn = 0;  // inner size
    bool bias = false;
    double gate_scale = 1, output_scale = 1;  // of W_gate x, and of the result
    bool operator==(const MlpSpec&) const = default;
};
struct LayerSpec {
    // None: tokens are not mixed.
    std::variant<std::monostate, AttentionSpec, ConvolutionSpec, DeltaSpec, ScanSpec, BesideSpec> mixer;
    std::variant<std::monostate, MlpSpec, MixtureSpec> feed_forward;  // none: the layer is its mixer
    GateSpec gate;                                                    // of the MLP, or of the experts
    bool norm_before = true, norm_behind = false;                     // norms around mixer and feed-forward part
    double residual_scale = 1;                                        // of what each part adds

    const AttentionSpec* attention() const {
        return beside() ? &beside()->attention : std::get_if<AttentionSpec>(&mixer);
    }
    const ConvolutionSpec* convolution() const { return std::get_if<ConvolutionSpec>(&mixer); }
    const DeltaSpec* delta() const { return std::get_if<DeltaSpec>(&mixer); }
    const ScanSpec* scan() const { return beside() ? &beside()->scan : std::get_if<ScanSpec>(&mixer); }
    const BesideSpec* beside() const { return std::get_if<BesideSpec>(&mixer); }
    const MixtureSpec* mixture() const { return std::get_if<MixtureSpec>(&feed_forward); }
    const MlpSpec* mlp() const { return std::get_if<MlpSpec>(&feed_forward); }
    bool operator==(const LayerSpec&) const = default;
};
// From model.layers on: of the blocks that predict later tokens. Such a block has one mixer, attention in a model with
// attention, and one feed-forward part: it is like the last layer with attention, or, where each layer is one part, two
// layers, "*E" in Nemotron 3.
LayerSpec layer(const ModelSpec& model, int64_t i);
// The layers of each of these blocks, and those of all.
int64_t layers_of_a_depth(const ModelSpec& model);
int64_t layers_behind(const ModelSpec& model);
// Factors of activations that Falcon-H1 has in place of initial values of different sizes (Yang et al. 2022, muP).
struct Multipliers {
    double key = 1;                                // of keys
    double attention_in = 1, attention_out = 1;    // of attention's input and output
    double scan_in = 1, scan_out = 1;              // likewise
    std::array<double, 5> scan = {1, 1, 1, 1, 1};  // of z, x, B, C and dt
    double gate = 1, down = 1;                     // of the MLP's gate and output
    bool operator==(const Multipliers&) const = default;
};
// ModelSpec::multipliers, in the order above; UsageError for other text.
Multipliers multipliers_of(const std::string& text);
std::string to_text(const Multipliers& multipliers);  // and back
// Whether layers of the model have the scan.
bool has_scan(const ModelSpec& model);
// YaRN's m(x) = 0.1 x ln(factor) + 1; 1 for factors up to 1.
double yarn_mscale(double x, double factor);
std::vector<LayerSpec> all_layers(const ModelSpec& model);

// Indices of those with experts, and the same with blocks that predict later tokens.
std::vector<int64_t> layers_with_experts(const ModelSpec& model);
std::vector<int64_t> layers_with_routers(const ModelSpec& model);

struct Recompute {
    int64_t segment = 0;     // blocks that are recomputed together from their input; 0: none
    bool selective = false;  // recompute norms and activation functions only: cheap, a third of a block's saved bytes
};

// "none", "selective", "full" (segments of 1), "every:N" (of N), "sqrt" (of round(sqrt(layers))). Throws UsageError for
// any other policy.
Recompute recompute_of(const std::string& policy, int64_t layers);

}  // namespace tutti::spec
