#include "tutti/spec/later_names.h"

#include "tutti/base/digits.h"
#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/spec/hf/keys.h"
#include "tutti/spec/layers.h"
#include "tutti/spec/variants.h"

namespace tutti::spec {

namespace {

constexpr const char* kBehind = "mtp.";

}  // namespace

LaterNames later_names(const ModelSpec& m, int64_t k) {
    const Variant& variant = variant_of(m);
    const bool numbered = variant.later == LaterFiles::none || variant.later == LaterFiles::layers;
    const int64_t count = layers_of_a_depth(m), first = k * count;
    LaterNames names;
    for (int64_t i = first; i < first + count; ++i)
        names.layers.push_back(numbered ? concat(variant.prefix, ".layers.", m.layers + i)
                                        : concat(kBehind, "layers.", i));
    if (variant.later == LaterFiles::fused) {
        const std::string of = k == 0 ? kBehind : concat(kBehind, k, ".");  // no file has a second one
        names.embedding_norm = of + "pre_fc_norm_embedding";
        names.hidden_norm = of + "pre_fc_norm_hidden";
        names.projection = of + "fc";
        names.norm = of + "norm";
        return names;
    }
    names.embedding_norm = names.layers.front() + ".enorm";
    names.hidden_norm = names.layers.front() + ".hnorm";
    names.projection = names.layers.front() + ".eh_proj";
    names.norm = names.layers.back() + (numbered ? ".shared_head.norm" : ".final_layernorm");
    return names;
}

std::optional<int64_t> place_behind(const ModelSpec& m, std::string_view tensor) {
    const Variant& variant = variant_of(m);
    if (variant.later == LaterFiles::none) return std::nullopt;
    const bool numbered = variant.later == LaterFiles::layers;
    const std::string layers = numbered ? concat(variant.prefix, ".layers.") : concat(kBehind, "layers.");
    if (!tensor.starts_with(layers)) return tensor.starts_with(kBehind) ? std::optional<int64_t>(0) : std::nullopt;
    const std::string_view rest = tensor.substr(layers.size());
    const auto layer = parse_number<int64_t>(rest.substr(0, rest.find('.')));
    const int64_t place = layer.value_or(-1) - (numbered ? m.layers : 0);
    return place < 0 ? std::nullopt : std::optional(place);
}

int64_t mtp_depth_of(std::string_view text) {
    const Json json = parse_hf_json(text, "config.json");
    for (const char* key : {"num_nextn_predict_layers", "mtp_num_hidden_layers"})
        if (const Json* depth = json.find(key); depth != nullptr && depth->is_integer(0, 1 << 20))
            return depth->get<int64_t>();
    // The readers of these classes take one where config.json says nothing.
    const Json* type = json.find("model_type");
    const ModelSpec of_class{.variant = type != nullptr && type->is_string() ? type->text() : ""};
    return variant_of(of_class).later == LaterFiles::fused ? 1 : 0;
}

}  // namespace tutti::spec
