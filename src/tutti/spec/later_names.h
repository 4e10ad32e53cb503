// spec/later_names.h: the names of the blocks that predict later tokens (models/later_token.h), in a model and its
// files. Sources: the files' readers, vllm/model_executor/models/deepseek_mtp.py and qwen3_next_mtp.py of
// vllm-project/vllm, python/sglang/srt/models/nemotron_h_mtp.py of sgl-project/sglang.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/spec/model_spec.h"

namespace tutti::spec {

// The names of block k of a model's blocks that predict later tokens, from k = 0 on (models/later_token.h).
struct LaterNames {
    std::vector<std::string> layers;  // "mtp.layers.0": of its layers
    std::string embedding_norm, hidden_norm, projection, norm;
};
LaterNames later_names(const ModelSpec& model, int64_t k);
// The place of a tensor among the layers behind the last one, by its name: 0 for "model.layers.61.enorm.weight" of 61
// layers. Nothing for other tensors.
std::optional<int64_t> place_behind(const ModelSpec& model, std::string_view tensor);
// The blocks of which `text`, a config.json, says that its files have them; a model reads them where its own mtp_depth
// says so.
int64_t mtp_depth_of(std::string_view text);

}  // namespace tutti::spec
