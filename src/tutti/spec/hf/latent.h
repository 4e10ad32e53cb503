// spec/hf/latent.h: the keys of config.json that DeepSeek's classes and their relatives have for latent attention and
// for experts, for the rows of spec/variants.h.
#pragma once

#include "tutti/spec/hf/keys.h"

namespace tutti::spec {

// Read after sizes and rotary positions.
void read_deepseek2(Keys& keys, ModelSpec& model);
void read_deepseek3(Keys& keys, ModelSpec& model);
void read_glm4_moe_lite(Keys& keys, ModelSpec& model);
void write_deepseek2(const ModelSpec& model, Json& json);
void write_deepseek3(const ModelSpec& model, Json& json);
void write_glm4_moe_lite(const ModelSpec& model, Json& json);

}  // namespace tutti::spec
