// models/latent_attention.h: multi-head latent attention (DeepSeek-AI 2024, DeepSeek-V2, section 2.1).
#pragma once

#include <optional>
#include <string>

#include "tutti/models/model.h"

namespace tutti::models {

// c = N(first rows of W_kva x), k_h | v_h = W_kvb c, and the other rows of W_kva x are a key that is rotated and that
// all heads have behind their own k_h. q = W_q x, or W_qb N(W_qa x), rotated in as many last channels of a head. W_o of
// the attention of these. Each tensor-parallel rank makes the latents of its tokens, whole, and the heads that it has.
// Must not be moved once a unit owns it.
class LatentAttention {
  public:
    // `name`: "model.layers.3.self_attn". Parameter names are those of DeepseekV3ForCausalLM.
    LatentAttention(const spec::ModelSpec& spec, int64_t layer, const std::string& name, RopeTables rope);

    nn::Var operator()(nn::Tape& tape, const nn::Var& x, const nn::Batch& batch);  // x, y (B, T, C)

  private:
    friend void own(autograd::Unit& unit, LatentAttention& part);

    int64_t layer_, latent_, own_dim_, shared_dim_, value_dim_;  // channels of the latent, and of a head
    nn::AttentionOptions options_;
    ops::RopeTable rope_;
    std::optional<nn::Linear> q_a_;
    std::optional<nn::Norm> q_norm_;
    nn::Linear q_, kv_a_, kv_b_, o_;
    nn::Norm kv_norm_;
};

}  // namespace tutti::models
