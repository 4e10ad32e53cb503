#include "tutti/models/latent_attention.h"

#include "tutti/models/decoder.h"
#include "tutti/nn/context_attention.h"
#include "tutti/nn/latent_attention.h"
#include "tutti/nn/overlapped.h"
#include "tutti/spec/layers.h"

namespace tutti::models {

using namespace nn;

LatentAttention::LatentAttention(const spec::ModelSpec& s, int64_t layer, const std::string& name, RopeTables rope)
    : layer_(layer), rope_(std::move(rope.keys)) {
    const spec::LayerSpec of_layer = spec::layer(s, layer);
    const spec::AttentionSpec& a = *of_layer.attention();
    const spec::LatentSpec& latent = *a.latent;
    const int64_t C = s.width, H = a.heads, D = a.head_dim;
    options_ = {.window = a.window, .scores = {.scale = a.score_scale, .cap = a.score_cap}};
    latent_ = latent.kv;
    shared_dim_ = a.rope->dims;
    own_dim_ = D - shared_dim_;
    value_dim_ = a.value_dim;
    // Of whole tokens, like a norm: a rank makes the latents of the tokens that it has between products.
    const LinearOptions of_tokens{.role = Role::norm, .std = s.init_std};
    const auto of_heads = [&](int64_t grain) {
        return LinearOptions{.role = Role::column, .std = s.init_std, .grain = grain};
    };
    if (latent.q > 0) {
        q_a_ = make_linear(name + ".q_a_proj", C, latent.q, of_tokens);
        q_norm_ = make_rms_norm(name + ".q_a_layernorm", latent.q, latent.norm_eps);
    }
    q_ = make_linear(name + (q_a_ ? ".q_b_proj" : ".q_proj"), q_a_ ? latent.q : C, H * D, of_heads(D));
    kv_a_ = make_linear(name + ".kv_a_proj_with_mqa", C, latent_ + shared_dim_, of_tokens);
    kv_norm_ = make_rms_norm(name + ".kv_a_layernorm", latent_, latent.norm_eps);
    const int64_t of_head = own_dim_ + value_dim_;
    kv_b_ = make_linear(name + ".kv_b_proj", latent_, H * of_head, of_heads(of_head));
    o_ = make_linear(name + ".o_proj", H * value_dim_, C,
                     {.role = Role::row, .std = residual_std(s), .grain = value_dim_});
}

Var LatentAttention::operator()(Tape& tape, const Var& x, const Batch& batch) {
    const auto queries_and_latent = [&]() -> std::pair<Var, Var> {
        if (!q_a_) return {q_(tape, x), kv_a_(tape, x)};
        const std::vector<Var> latents = projections(tape, x, {*q_a_, kv_a_});
        return {q_(tape, (*q_norm_)(tape, latents[0])), latents[1]};
    };
    const auto [all_queries, latent_and_key] = queries_and_latent();
    const auto in_region = [&](const Var& y) {
        return split_heads(tape, enter_tp_region(tape, y, kv_b_.weight), y.value.dim(2));
    };
    Var latent = in_region(kv_norm_(tape, channels(tape, latent_and_key, 0, latent_)));
    Var key = in_region(channels(tape, latent_and_key, latent_, shared_dim_));
    key = rope(tape, key, batch.positions, rope_);
    const Var q =
        rope(tape, split_heads(tape, all_queries, own_dim_ + shared_dim_), batch.positions, rope_, 0, own_dim_);
    if (latents_are_gathered(batch)) {
        latent = gather_from_context(tape, latent, batch);
        key = gather_from_context(tape, key, batch);
    }
    const Var keys_and_values = linear_in_region(tape, join_heads(tape, latent), kv_b_);
    return o_(tape,
              join_heads(tape, latent_attention(tape, q, split_heads(tape, keys_and_values, own_dim_ + value_dim_), key,
                                                batch, layer_, options_)));
}

void own(autograd::Unit& unit, LatentAttention& part) {
    if (part.q_a_) own_all(unit, *part.q_a_, *part.q_norm_);
    own_all(unit, part.q_, part.kv_a_, part.kv_norm_, part.kv_b_, part.o_);
    const int64_t queries = part.q_.weight.shape[0], values = part.o_.weight.shape[1];
    unit.attention.push_back({(queries + values) / 2, part.options_.window});
}

}  // namespace tutti::models
