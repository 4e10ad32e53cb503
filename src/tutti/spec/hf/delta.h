// spec/hf/delta.h: the keys of config.json of the classes of transformers with the gated delta rule: Qwen3-Next,
// Qwen3.5 and its mixture.
#pragma once

#include "tutti/spec/hf/keys.h"

namespace tutti::spec {

// The layers with the rule, and its sizes.
void read_delta_rule(Keys& keys, ModelSpec& model);
void write_delta_rule(const ModelSpec& model, Json& json);

void read_qwen3_next(Keys& keys, ModelSpec& model);
void write_qwen3_next(const ModelSpec& model, Json& json);
void read_qwen3_5_moe(Keys& keys, ModelSpec& model);
void write_qwen3_5_moe(const ModelSpec& model, Json& json);

}  // namespace tutti::spec
