#include "tutti/models/self_attention.h"

#include "tutti/models/decoder.h"
#include "tutti/nn/product_rule.h"
#include "tutti/spec/layers.h"

namespace tutti::models {

using namespace nn;

SelfAttention::SelfAttention(const spec::ModelSpec& s, int64_t layer, const std::string& name, ops::RopeTable rope,
                             const SelfAttentionNames& names)
    : layer_(layer), rope_(std::move(rope)) {
    const spec::LayerSpec of_layer = spec::layer(s, layer);
    const spec::AttentionSpec& a = *of_layer.attention();
    const int64_t C = s.width, D = a.head_dim;
    window_ = a.window;
    head_dim_ = D;
    const LinearOptions q{.role = Role::column, .std = s.init_std, .bias = a.bias, .grain = D};
    const LinearOptions kv{.role = Role::key_value, .std = s.init_std, .bias = a.bias, .grain = D};
    q_ = make_linear(name + ".q_proj", C, a.heads * D, q);
    k_ = make_linear(name + ".k_proj", C, a.kv_heads * D, kv);
    v_ = make_linear(name + ".v_proj", C, a.kv_heads * D, kv);
    o_ = make_linear(concat(name, ".", names.output), a.heads * D, C,
                     {.role = Role::row, .std = residual_std(s), .bias = a.output_bias, .grain = D});
    if (a.head_norm) {
        q_norm_ = make_rms_norm(concat(name, ".", names.query_norm), D, s.norm_eps, Role::every_head);
        k_norm_ = make_rms_norm(concat(name, ".", names.key_norm), D, s.norm_eps, Role::every_head);
    }
}

Var SelfAttention::operator()(Tape& tape, const Var& x, const Batch& batch) {
    // A norm of heads stands between the projection and the rotation, and reads whole tensors.
    const bool fused = !q_norm_ && fuses(tape.context(), {q_, k_, v_});
    return o_(tape, join_heads(tape, fused ? packed(tape, x, batch) : apart(tape, x, batch)));
}

Var SelfAttention::packed(Tape& tape, const Var& x, const Batch& batch) {
    const int64_t kv_heads = k_.weight.value.dim(0) / head_dim_;  // of this rank
    const Var qkv = split_heads(tape, fused_projections(tape, x, {q_, k_, v_}), head_dim_);
    const Var rotated = rope(tape, qkv, batch.positions, rope_, qkv.value.dim(2) - kv_heads);
    return packed_heads_attention(tape, rotated, kv_heads, batch, layer_, window_);
}

Var SelfAttention::apart(Tape& tape, const Var& x, const Batch& batch) {
    const auto rotated = [&](const Var& heads, std::optional<Norm>& norm) {
        return rope(tape, norm ? (*norm)(tape, heads) : heads, batch.positions, rope_);
    };
    const std::vector<Var> qkv = projections(tape, x, {q_, k_, v_});
    const Var q = rotated(split_heads(tape, qkv[0], head_dim_), q_norm_);
    const Var k = rotated(split_heads(tape, qkv[1], head_dim_), k_norm_);
    const Var v = split_heads(tape, qkv[2], head_dim_);
    return attention(tape, q, k, v, batch, layer_, window_);
}

void own(autograd::Unit& unit, SelfAttention& part) {
    own_adjacent(unit, {&part.q_, &part.k_, &part.v_});
    if (part.q_norm_) own_all(unit, *part.q_norm_, *part.k_norm_);
    own_all(unit, part.o_);
    unit.attention.push_back({part.o_.weight.shape[1], part.window_});
}

}  // namespace tutti::models
