#include "tutti/spec/families.h"

#include <algorithm>
#include <array>

namespace tutti::spec {

namespace {

constexpr std::string_view kOptions =
    "qkv_bias output_bias mlp_bias window window_layers variant norms norm_offset width_norm gate embedding_sqrt "
    "embedding_scale residual_scale logit_divisor logit_cap score_scale score_cap rope_dims rope_adjacent nope_layers "
    "window_rope_theta query_growth delta_layers delta_key_heads delta_value_heads delta_key_dim delta_value_dim "
    "scan_layers scan_beside scan_heads scan_head_dim scan_groups scan_state scan_step_min scan_step_max scan_norm "
    "pattern multipliers attention_gate kv_latent q_latent value_dim gate_limit sinks mtp_depth mtp_weight ";

constexpr std::array kFamilyTraits = {
    FamilyTraits{.family = Family::gpt2,
                 .name = "gpt2",
                 .rotary = false,
                 .mixtures = false,
                 .biases = true,
                 .gated = false,
                 .plain_heads = true,
                 .unused = "conv_layers conv_kernel conv_bias head_norm rope_theta rope_scaling.factor "},
    FamilyTraits{.family = Family::llama, .name = "llama", .options = true, .unused = "conv_layers "},
    FamilyTraits{.family = Family::lfm2, .name = "lfm2", .head_norm = true, .router_epsilon = 1e-6},
    FamilyTraits{.family = Family::mlp,
                 .name = "mlp",
                 .tokens = false,
                 .rotary = false,
                 .mixtures = false,
                 .gated = false,
                 .unused = "conv_layers conv_kernel conv_bias head_norm rope_theta rope_scaling.factor vocab heads "
                           "kv_heads head_dim ffn max_positions norm_eps tie_embeddings dropout "}};

bool lists(std::string_view keys, std::string_view key) {
    for (; !keys.empty(); keys.remove_prefix(keys.find(' ') + 1))
        if (keys.substr(0, keys.find(' ')) == key) return true;
    return false;
}

}  // namespace

bool FamilyTraits::uses(std::string_view key) const {
    return !lists(unused, key) && (options || !lists(kOptions, key));
}

const FamilyTraits& traits_of(Family family) {
    const auto* row = std::ranges::find(kFamilyTraits, family, &FamilyTraits::family);
    static constexpr FamilyTraits kUnknown{};
    return row == kFamilyTraits.end() ? kUnknown : *row;
}

std::string_view name_of(Family family) { return traits_of(family).name; }

}  // namespace tutti::spec
