// spec/hf/experts.h: the keys of config.json about mixtures of experts that several classes of transformers have, and
// those of gpt-oss.
#pragma once

#include "tutti/spec/hf/keys.h"

namespace tutti::spec {

// The number of experts, and of those that a token goes to.
void read_expert_count(Keys& keys, MixtureSpec& experts);
// Also their sizes, which layers have them, and a balancing loss; of a Qwen, `shared`: with a gated shared expert.
void read_qwen_experts(Keys& keys, ModelSpec& model, bool shared);
// The same keys, for writing; not norm_topk_prob.
void write_qwen_experts(const ModelSpec& model, Json& json);

void read_gpt_oss(Keys& keys, ModelSpec& model);
void write_gpt_oss(const ModelSpec& model, Json& json);

}  // namespace tutti::spec
