#include "tutti/models/delta_rule.h"

#include <cmath>

#include "tutti/models/decoder.h"
#include "tutti/nn/delta_rule.h"
#include "tutti/spec/layers.h"

namespace tutti::models {

using namespace nn;

DeltaRule::DeltaRule(const spec::ModelSpec& s, int64_t layer, const std::string& name, bool by_key_head)
    : layer_(layer) {
    const spec::LayerSpec of_layer = spec::layer(s, layer);
    const spec::DeltaSpec& d = *of_layer.delta();
    const int64_t C = s.width, K = d.key_heads, group = d.value_heads / d.key_heads;
    key_dim_ = d.key_dim;
    value_dim_ = d.value_dim;
    // Ranks divide key heads, with their value heads. `of_head`: outputs for a key head.
    const auto project = [&](const char* of, int64_t of_head) {
        return make_linear(concat(name, ".", of), C, K * of_head,
                           {.role = Role::column, .std = s.init_std, .grain = of_head});
    };
    const auto taps = [&](const char* of, int64_t of_head) {
        return WeightAndBias{.weight = {.name = concat(name, ".", of, ".weight"),
                                        .shape = {K * of_head, 1, d.kernel},
                                        .role = Role::column,
                                        .init = {.std = s.init_std},
                                        .grain = of_head},
                             .bias = {}};
    };
    const auto of_heads = [&](const char* of, autograd::Init init) {
        return Parameter{.name = concat(name, ".", of),
                         .shape = {d.value_heads},
                         .role = Role::column,
                         .init = init,
                         .grain = group};
    };
    const int64_t values = group * d.value_dim;
    q_ = project("q_proj", d.key_dim), k_ = project("k_proj", d.key_dim);
    v_ = project("v_proj", values), z_ = project("in_proj_z", values);
    b_ = project("in_proj_b", group), a_ = project("in_proj_a", group);
    taps_q_ = taps("q_conv", d.key_dim), taps_k_ = taps("k_conv", d.key_dim), taps_v_ = taps("v_conv", values);
    store_as_rows({&taps_q_.weight, &taps_k_.weight, &taps_v_.weight}, name + ".conv1d.weight");
    if (by_key_head) {
        store_as_rows({&q_.weight, &k_.weight, &v_.weight, &z_.weight}, name + ".in_proj_qkvz.weight", K);
        store_as_rows({&b_.weight, &a_.weight}, name + ".in_proj_ba.weight", K);
    } else {
        store_as_rows({&q_.weight, &k_.weight, &v_.weight}, name + ".in_proj_qkv.weight");
    }
    // The decays at the start are spread as in the class of transformers, from slow to fast.
    a_log_ = of_heads("A_log", {.each = [](int64_t, double u) { return std::log(0.01 + (16 - 0.01) * u); }});
    dt_bias_ = of_heads("dt_bias", {.value = 1});
    norm_ = make_rms_norm(name + ".norm", d.value_dim, s.norm_eps, Role::every_head);
    out_ = make_linear(name + ".out_proj", d.value_heads * d.value_dim, C,
                       {.role = Role::row, .std = residual_std(s), .grain = values});
}

Var DeltaRule::operator()(Tape& tape, const Var& x, const Batch& batch) {
    const std::vector<Var> in = projections(tape, x, {q_, k_, v_, z_, b_, a_});
    const auto heads = [&](const Var& of, WeightAndBias& taps, size_t index, int64_t dim) {
        const ConvolutionPlace place{.layer = layer_, .gates = false, .index = index};
        return split_heads(tape, short_convolution(tape, of, taps, batch, place), dim);
    };
    const Var o = delta_rule(tape,
                             {.query = heads(in[0], taps_q_, 0, key_dim_),
                              .key = heads(in[1], taps_k_, 1, key_dim_),
                              .value = heads(in[2], taps_v_, 2, value_dim_),
                              .g = decay(tape, in[5], a_log_, dt_bias_),
                              .b = in[4]},
                             batch, layer_);
    return out_(tape, swiglu(tape, in[3], join_heads(tape, norm_(tape, o))));
}

void own(autograd::Unit& unit, DeltaRule& part) {
    own_adjacent(unit, {&part.q_, &part.k_, &part.v_, &part.z_, &part.b_, &part.a_});
    own_all(unit, part.taps_q_, part.taps_k_, part.taps_v_);
    unit.parameters.push_back(&part.a_log_);
    unit.parameters.push_back(&part.dt_bias_);
    own_all(unit, part.norm_, part.out_);
    // 3 products of a state and a vector for each token.
    unit.state_flops += 6.0 * static_cast<double>(part.out_.weight.shape[1] * part.key_dim_);
}

}  // namespace tutti::models
