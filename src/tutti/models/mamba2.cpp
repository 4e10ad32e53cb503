#include "tutti/models/mamba2.h"

#include <cmath>

#include "tutti/comm/communicator.h"
#include "tutti/models/decoder.h"
#include "tutti/nn/delta_rule.h"

namespace tutti::models {

using namespace nn;

namespace {

// What softplus makes a step that is spread evenly in its logarithm, as the class of transformers begins.
double step_bias(double least, double most, double uniform) {
    const double dt = std::exp(std::log(least) + uniform * (std::log(most) - std::log(least)));
    return dt + std::log(-std::expm1(-dt));
}

}  // namespace

Mamba2::Mamba2(const spec::ModelSpec& s, int64_t layer, const std::string& name)
    : layer_(layer), spec_(*spec::layer(s, layer).scan()) {
    const int64_t C = s.width, H = spec_.heads, P = spec_.head_dim, N = spec_.state, width = H / spec_.groups * P;
    const auto project = [&](const char* of, int64_t out, Role role, int64_t grain) {
        return make_linear(concat(name, ".", of), C, out, {.role = role, .std = s.init_std, .grain = grain});
    };
    const auto taps = [&](const char* of, int64_t channels, Role role, int64_t grain) {
        WeightAndBias layer_of{.weight = {.name = concat(name, ".", of, ".weight"),
                                          .shape = {channels, 1, spec_.kernel},
                                          .role = role,
                                          .init = {.std = s.init_std},
                                          .grain = grain},
                               .bias = {}};
        if (spec_.conv_bias)
            layer_of.bias =
                Parameter{.name = concat(name, ".", of, ".bias"), .shape = {channels}, .role = role, .grain = grain};
        return layer_of;
    };
    const auto of_heads = [&](const char* of, autograd::Init init) {
        return Parameter{.name = concat(name, ".", of), .shape = {H}, .role = Role::column, .init = init};
    };
    z_ = project("z_proj", H * P, Role::column, P), x_ = project("x_proj", H * P, Role::column, P);
    b_ = project("B_proj", spec_.groups * N, Role::head_group, N);
    c_ = project("C_proj", spec_.groups * N, Role::head_group, N);
    dt_ = project("dt_proj", H, Role::column, 1);
    store_as_rows({&z_.weight, &x_.weight, &b_.weight, &c_.weight, &dt_.weight}, name + ".in_proj.weight");
    taps_x_ = taps("x_conv", H * P, Role::column, P);
    taps_b_ = taps("B_conv", spec_.groups * N, Role::head_group, N);
    taps_c_ = taps("C_conv", spec_.groups * N, Role::head_group, N);
    store_as_rows({&taps_x_.weight, &taps_b_.weight, &taps_c_.weight}, name + ".conv1d.weight");
    if (spec_.conv_bias) store_as_rows({&*taps_x_.bias, &*taps_b_.bias, &*taps_c_.bias}, name + ".conv1d.bias");
    a_log_ = of_heads("A_log", {.each = [](int64_t head, double) { return std::log(static_cast<double>(head + 1)); }});
    // Nemotron-H's steps begin between their bound and 0.1.
    const double least = std::max(spec_.step_min, 1e-4), most = std::max(least, 0.1);
    autograd::Init of_bias{.value = 1};
    if (spec_.step_min > 0) of_bias.each = [=](int64_t, double u) { return step_bias(least, most, u); };
    dt_bias_ = of_heads("dt_bias", of_bias);
    skip_ = of_heads("D", {.value = 1});
    if (spec_.norm != "none") {
        norm_ = make_rms_norm(name + ".norm", H * P, s.norm_eps, Role::head_group);
        norm_->weight.grain = width;
    }
    out_ = make_linear(name + ".out_proj", H * P, C, {.role = Role::row, .std = residual_std(s), .grain = P});
}

Var Mamba2::own_groups(Tape& tape, const Var& x) const {
    const comm::Communicator* ranks = x_.weight.tensor_parallel.ranks;
    if (ranks == nullptr || spec_.groups % ranks->size() == 0) return x;
    return channels(tape, x, ranks->rank() * spec_.groups / ranks->size() * spec_.state, spec_.state);
}

Var Mamba2::normed(Tape& tape, const Var& o, const Var& z) {
    const auto norm = [&](const Var& y) {
        const int64_t width = spec_.heads / spec_.groups * spec_.head_dim;
        return norm_over_groups(tape, y, *norm_, norm_->eps, spec_.head_dim, width);
    };
    if (spec_.norm == "before_gate") return swiglu(tape, z, norm(o));
    const Var gated = swiglu(tape, z, o);
    return norm_ ? norm(gated) : gated;
}

Var Mamba2::operator()(Tape& tape, const Var& u, const Batch& batch) {
    std::vector<Var> in = projections(tape, u, {z_, x_, b_, c_, dt_});
    for (size_t i = 0; i < in.size(); ++i) in[i] = scale(tape, in[i], spec_.scales[i]);
    const auto convolved = [&](const Var& of, WeightAndBias& taps, size_t index) {
        return short_convolution(tape, of, taps, batch, {.layer = layer_, .gates = false, .index = index});
    };
    const Var x = convolved(in[1], taps_x_, 0), b = convolved(in[2], taps_b_, 1), c = convolved(in[3], taps_c_, 2);
    ops::StepRange range{.least = static_cast<float>(spec_.step_min)};
    if (spec_.step_max > 0) range.most = static_cast<float>(spec_.step_max);
    const Var o = delta_rule(tape,
                             {.query = split_heads(tape, own_groups(tape, c), spec_.state),
                              .key = split_heads(tape, own_groups(tape, b), spec_.state),
                              .value = split_heads(tape, x, spec_.head_dim),
                              .g = decay_and_steps(tape, in[4], a_log_, dt_bias_, range),
                              .b = {},
                              .skip = &skip_},
                             batch, layer_);
    return scale(tape, out_(tape, normed(tape, join_heads(tape, o), in[0])), spec_.output_scale);
}

void own(autograd::Unit& unit, Mamba2& part) {
    own_adjacent(unit, {&part.z_, &part.x_, &part.b_, &part.c_, &part.dt_});
    own_all(unit, part.taps_x_, part.taps_b_, part.taps_c_);
    for (Parameter* p : {&part.a_log_, &part.dt_bias_, &part.skip_}) unit.parameters.push_back(p);
    if (part.norm_) own(unit, *part.norm_);
    own(unit, part.out_);
    // 2 products of a state and a vector for each token.
    unit.state_flops += 4.0 * static_cast<double>(part.out_.weight.shape[1] * part.spec_.state);
}

}  // namespace tutti::models
