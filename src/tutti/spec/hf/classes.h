// spec/hf/classes.h: the keys of config.json that some classes of transformers have beside those of all (keys.h), read
// and written, by what a layer of these classes has; for the rows of spec/variants.h.
#pragma once

#include "tutti/spec/hf/keys.h"

namespace tutti::spec {

// --- experts, which several classes have, and those of gpt-oss ---

// The number of experts, and of those that a token goes to.
void read_expert_count(Keys& keys, MixtureSpec& experts);
// Also their sizes, which layers have them, and a balancing loss; of a Qwen, `shared`: with a gated shared expert.
void read_qwen_experts(Keys& keys, ModelSpec& model, bool shared);
// The same keys, for writing; not norm_topk_prob.
void write_qwen_experts(const ModelSpec& model, Json& json);

void read_gpt_oss(Keys& keys, ModelSpec& model);
void write_gpt_oss(const ModelSpec& model, Json& json);

// --- latent attention: DeepSeek and its relatives ---

// Read after sizes and rotary positions.
void read_deepseek2(Keys& keys, ModelSpec& model);
void read_deepseek3(Keys& keys, ModelSpec& model);
void read_glm4_moe_lite(Keys& keys, ModelSpec& model);
void write_deepseek2(const ModelSpec& model, Json& json);
void write_deepseek3(const ModelSpec& model, Json& json);
void write_glm4_moe_lite(const ModelSpec& model, Json& json);

// --- the gated delta rule: Qwen3-Next, Qwen3.5 and its mixture ---

// The layers with the rule, and its sizes.
void read_delta_rule(Keys& keys, ModelSpec& model);
void write_delta_rule(const ModelSpec& model, Json& json);

void read_qwen3_next(Keys& keys, ModelSpec& model);
void write_qwen3_next(const ModelSpec& model, Json& json);
void read_qwen3_5_moe(Keys& keys, ModelSpec& model);
void write_qwen3_5_moe(const ModelSpec& model, Json& json);

// --- the scan of Mamba-2: Granite 4 (granitemoehybrid), Nemotron-H, Falcon-H1, and Mamba-2 itself ---

void read_granite4(Keys& keys, ModelSpec& model);
void write_granite4(const ModelSpec& model, Json& json);

// The layers of a Nemotron-H, by its pattern.
int64_t nemotron_layers(Keys& keys);
void read_nemotron(Keys& keys, ModelSpec& model);
void write_nemotron(const ModelSpec& model, Json& json);

void read_falcon(Keys& keys, ModelSpec& model);
void write_falcon(const ModelSpec& model, Json& json);

// A Mamba-2 has scans alone. Of the sizes of attention, which have no effect, the heads are those of the scan.
void read_mamba2(Keys& keys, ModelSpec& model);
void write_mamba2(const ModelSpec& model, Json& json);

}  // namespace tutti::spec
