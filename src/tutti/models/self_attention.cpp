#include "tutti/models/self_attention.h"

#include "tutti/models/decoder.h"
#include "tutti/nn/product_rule.h"
#include "tutti/spec/layers.h"

namespace tutti::models {

using namespace nn;

SelfAttention::SelfAttention(const spec::ModelSpec& s, int64_t layer, const std::string& name, RopeTables rope,
                             const SelfAttentionNames& names)
    : layer_(layer), rope_(std::move(rope)) {
    const spec::LayerSpec of_layer = spec::layer(s, layer);
    const spec::AttentionSpec& a = *of_layer.attention();
    const int64_t C = s.width, D = a.head_dim;
    options_ = {.window = a.window, .scores = {.scale = a.score_scale, .cap = a.score_cap}};
    rotates_ = a.rope.has_value();
    over_heads_ = a.width_norm;
    head_dim_ = D;
    output_scale_ = a.output_scale;
    const LinearOptions q{.role = Role::column, .std = s.init_std, .bias = a.bias, .grain = D};
    const LinearOptions kv{.role = Role::key_value, .std = s.init_std, .bias = a.bias, .grain = D};
    q_ = make_linear(name + ".q_proj", C, a.heads * D, q);
    k_ = make_linear(name + ".k_proj", C, a.kv_heads * D, kv);
    v_ = make_linear(name + ".v_proj", C, a.kv_heads * D, kv);
    if (a.output_gate) gate_ = make_linear(name + ".gate_proj", C, a.heads * D, q);
    if (names.gate && gate_) store_as_rows({&q_.weight, &gate_->weight}, name + "." + names.gate + ".weight", a.heads);
    o_ = make_linear(name + "." + names.output, a.heads * D, C,
                     {.role = Role::row, .std = residual_std(s), .bias = a.output_bias, .grain = D});
    if (a.head_norm || a.width_norm) {
        const auto norm = [&](const char* of, int64_t heads) {
            return make_rms_norm(name + "." + of, over_heads_ ? heads * D : D, s.norm_eps, Role::every_head,
                                 s.norm_offset ? 1 : 0);
        };
        q_norm_ = norm(names.query_norm, a.heads);
        k_norm_ = norm(names.key_norm, a.kv_heads);
    }
    if (a.sinks)
        sinks_ =
            Parameter{.name = name + ".sinks", .shape = {a.heads}, .role = Role::column, .init = {.std = s.init_std}};
    if (names.fused) store_as_rows({&q_.weight, &k_.weight, &v_.weight}, name + "." + names.fused + ".weight");
}

Var SelfAttention::operator()(Tape& tape, const Var& x, const Batch& batch) {
    // A norm of heads stands between the projection and the rotation, and reads whole tensors.
    const bool fused = !q_norm_ && !gate_ && !rope_.grows && fuses(tape.context(), {q_, k_, v_});
    return scale(tape, o_(tape, fused ? join_heads(tape, packed(tape, x, batch)) : unfused(tape, x, batch)),
                 output_scale_);
}

Var SelfAttention::packed(Tape& tape, const Var& x, const Batch& batch) {
    const int64_t kv_heads = k_.weight.value.dim(0) / head_dim_;  // of this rank
    const Var qkv = split_heads(tape, fused_projections(tape, x, {q_, k_, v_}), head_dim_);
    const Var rotated = rotates_ ? rope(tape, qkv, batch.positions, rope_.keys, qkv.value.dim(2) - kv_heads) : qkv;
    return packed_heads_attention(tape, rotated, kv_heads, batch, layer_, options());
}

Var SelfAttention::unfused(Tape& tape, const Var& x, const Batch& batch) {
    const auto heads_of = [&](Var y, std::optional<Norm>& norm, const ops::RopeTable& table) {
        if (norm && over_heads_) y = norm_over_heads(tape, y, *norm, norm->eps, head_dim_, norm->offset);
        y = split_heads(tape, y, head_dim_);
        if (norm && !over_heads_) y = (*norm)(tape, y);
        return rotates_ ? rope(tape, y, batch.positions, table) : y;
    };
    const std::vector<Var> qkv =
        gate_ ? projections(tape, x, {q_, k_, v_, *gate_}) : projections(tape, x, {q_, k_, v_});
    const Var q = heads_of(qkv[0], q_norm_, rope_.queries), k = heads_of(qkv[1], k_norm_, rope_.keys);
    const Var y = attention(tape, q, k, split_heads(tape, qkv[2], head_dim_), batch, layer_, options());
    return gate_ ? swiglu(tape, qkv[3], join_heads(tape, y), ops::Gate::sigmoid) : join_heads(tape, y);
}

AttentionOptions SelfAttention::options() {
    AttentionOptions with_sinks = options_;
    if (sinks_) with_sinks.sinks = &*sinks_;
    return with_sinks;
}

void own(autograd::Unit& unit, SelfAttention& part) {
    own_adjacent(unit, {&part.q_, &part.k_, &part.v_});
    if (part.gate_) own_all(unit, *part.gate_);
    if (part.q_norm_) own_all(unit, *part.q_norm_, *part.k_norm_);
    if (part.sinks_) unit.parameters.push_back(&*part.sinks_);
    own_all(unit, part.o_);
    unit.attention.push_back({part.o_.weight.shape[1], part.options_.window});
}

}  // namespace tutti::models
