// models/self_attention.h: causal self-attention with rotary positions and grouped queries, of Llama and its relatives.
#pragma once

#include <optional>
#include <string>

#include "tutti/models/model.h"

namespace tutti::models {

// The names that differ between model families; the projections are q_proj, k_proj and v_proj in all of them.
struct SelfAttentionNames {
    const char* output = "o_proj";
    const char* fused = nullptr;  // in files q | k | v are rows of one tensor of this name
    const char* gate = nullptr;   // in files queries and gates are rows, by head, of one tensor of this name
    const char* query_norm = "q_norm";
    const char* key_norm = "k_norm";
};

// W_o Attention(rope(W_q x), rope(W_k x), W_v x), with the options of spec::AttentionSpec: before rotation each head of
// queries and keys is normalised, or all heads of a token together; scores have a scale and a cap, each head may have a
// sink, and the heads are multiplied by sigmoid(W_g x). Must not be moved once a unit owns it.
class SelfAttention {
  public:
    // `name`: "model.layers.3.self_attn". Empty tables: no rotation.
    SelfAttention(const spec::ModelSpec& spec, int64_t layer, const std::string& name, RopeTables rope,
                  const SelfAttentionNames& names = {});

    nn::Var operator()(nn::Tape& tape, const nn::Var& x, const nn::Batch& batch);  // x, y (B, T, C)

  private:
    friend void own(autograd::Unit& unit, SelfAttention& part);
    // Attention of the heads, (B, T, H, D), with q, k and v side by side in one tensor; and in three, (B, T, H D).
    nn::Var packed(nn::Tape& tape, const nn::Var& x, const nn::Batch& batch);
    nn::Var unfused(nn::Tape& tape, const nn::Var& x, const nn::Batch& batch);

    nn::AttentionOptions options();

    int64_t layer_, head_dim_;
    double output_scale_;
    nn::AttentionOptions options_;
    bool rotates_, over_heads_;  // over_heads_: the norms are of all heads together
    RopeTables rope_;
    nn::Linear q_, k_, v_, o_;
    std::optional<nn::Linear> gate_;
    std::optional<nn::Norm> q_norm_, k_norm_;
    std::optional<nn::Parameter> sinks_;  // (H)
};

}  // namespace tutti::models
