// models/delta_rule.h: linear attention by the gated delta rule, of Qwen3-Next and its relatives (Yang, Kautz and
// Hatamizadeh 2024).
#pragma once

#include <string>

#include "tutti/models/model.h"

namespace tutti::models {

// W_o (norm(o) silu(W_z x)), o the delta rule of conv(W_q x), conv(W_k x), conv(W_v x), the decay of W_a x, and W_b x,
// with short convolutions and an RMS norm of each head. In files the projections are rows of fewer tensors, and the
// convolutions one. Must not be moved once a unit owns it.
class DeltaRule {
  public:
    // `name`: "model.layers.3.linear_attn". by_key_head: files hold the rows of W_q, W_k, W_v and W_z, and those of W_b
    // and W_a, of a key head side by side (Qwen3-Next); else W_q, W_k, W_v one after another (Qwen3.5).
    DeltaRule(const spec::ModelSpec& spec, int64_t layer, const std::string& name, bool by_key_head);

    nn::Var operator()(nn::Tape& tape, const nn::Var& x, const nn::Batch& batch);  // x, y (B, T, C)

  private:
    friend void own(autograd::Unit& unit, DeltaRule& part);

    int64_t layer_, key_dim_, value_dim_;
    nn::Linear q_, k_, v_, z_, b_, a_, out_;
    nn::WeightAndBias taps_q_, taps_k_, taps_v_;  // (channels, 1, K)
    nn::Parameter a_log_, dt_bias_;               // (Hv)
    nn::Norm norm_;                               // of the values of a head
};

}  // namespace tutti::models
