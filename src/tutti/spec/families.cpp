#include "tutti/spec/families.h"

#include <algorithm>
#include <array>

namespace tutti::spec {

namespace {

constexpr std::array kFamilyTraits = {
    FamilyTraits{.family = Family::gpt2,
                 .name = "gpt2",
                 .rotary = false,
                 .mixtures = false,
                 .biases = true,
                 .gated = false,
                 .plain_heads = true,
                 .unused = "conv_layers conv_kernel conv_bias qkv_bias output_bias mlp_bias window window_layers "
                           "head_norm rope_theta rope_scaling.factor "},
    FamilyTraits{.family = Family::llama, .name = "llama", .unused = "conv_layers conv_kernel conv_bias "},
    FamilyTraits{.family = Family::lfm2,
                 .name = "lfm2",
                 .head_norm = true,
                 .unused = "qkv_bias output_bias mlp_bias window window_layers "},
    FamilyTraits{.family = Family::mlp,
                 .name = "mlp",
                 .tokens = false,
                 .rotary = false,
                 .mixtures = false,
                 .gated = false,
                 .unused = "conv_layers conv_kernel conv_bias qkv_bias output_bias mlp_bias window window_layers "
                           "head_norm rope_theta rope_scaling.factor vocab heads kv_heads head_dim ffn "
                           "max_positions norm_eps tie_embeddings dropout "}};

}  // namespace

bool FamilyTraits::uses(std::string_view key) const {
    for (std::string_view rest = unused; !rest.empty(); rest.remove_prefix(rest.find(' ') + 1))
        if (rest.substr(0, rest.find(' ')) == key) return false;
    return true;
}

const FamilyTraits& traits_of(Family family) {
    const auto* row = std::ranges::find(kFamilyTraits, family, &FamilyTraits::family);
    static constexpr FamilyTraits kUnknown{};
    return row == kFamilyTraits.end() ? kUnknown : *row;
}

std::string_view name_of(Family family) { return traits_of(family).name; }

}  // namespace tutti::spec
