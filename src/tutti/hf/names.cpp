#include "tutti/hf/names.h"

#include "tutti/base/error.h"

namespace tutti::hf {

TensorName tensor_name(spec::Family family, std::string_view parameter, bool with_prefix) {
    if (family != spec::Family::gpt2 || parameter == "lm_head.weight") return {std::string(parameter), false};
    bool conv1d = false;
    for (const std::string_view matrix :
         {".attn.c_attn.weight", ".attn.c_proj.weight", ".mlp.c_fc.weight", ".mlp.c_proj.weight"})
        conv1d = conv1d || parameter.ends_with(matrix);
    return {concat(with_prefix ? "transformer." : "", parameter), conv1d};
}

bool is_legacy_buffer(spec::Family family, std::string_view tensor) {
    if (family == spec::Family::gpt2) return tensor.ends_with(".attn.bias") || tensor.ends_with(".attn.masked_bias");
    return tensor.ends_with(".rotary_emb.inv_freq");
}

}  // namespace tutti::hf
