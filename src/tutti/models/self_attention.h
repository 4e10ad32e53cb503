// models/self_attention.h: causal self-attention with rotary positions and grouped queries, of Llama and its relatives.
#pragma once

#include <optional>
#include <string>

#include "tutti/nn/layers.h"
#include "tutti/spec/model_spec.h"

namespace tutti::models {

// The names that differ between model families; the projections are q_proj, k_proj and v_proj in all of them.
struct SelfAttentionNames {
    const char* output = "o_proj";
    const char* query_norm = "q_norm";
    const char* key_norm = "k_norm";
};

// W_o Attention(rope(W_q x), rope(W_k x), W_v x); with ModelSpec::head_norm each head of queries and keys is normalised
// before it is rotated. Must not be moved once a unit owns it.
class SelfAttention {
  public:
    // `name`: "model.layers.3.self_attn".
    SelfAttention(const spec::ModelSpec& spec, int64_t layer, const std::string& name, ops::RopeTable rope,
                  const SelfAttentionNames& names = {});

    nn::Var operator()(nn::Tape& tape, const nn::Var& x, const nn::Batch& batch);  // x, y (B, T, C)

  private:
    friend void own(autograd::Unit& unit, SelfAttention& part);
    // Attention of the heads (B, T, H, D), with q, k and v side by side in one tensor or in three.
    nn::Var packed(nn::Tape& tape, const nn::Var& x, const nn::Batch& batch);
    nn::Var apart(nn::Tape& tape, const nn::Var& x, const nn::Batch& batch);

    int64_t layer_, window_, head_dim_;
    ops::RopeTable rope_;
    nn::Linear q_, k_, v_, o_;
    std::optional<nn::Norm> q_norm_, k_norm_;
};

}  // namespace tutti::models
