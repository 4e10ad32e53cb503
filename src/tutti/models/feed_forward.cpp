#include "tutti/models/feed_forward.h"

#include "tutti/base/error.h"
#include "tutti/models/decoder.h"
#include "tutti/nn/mixture.h"
#include "tutti/spec/layers.h"

namespace tutti::models {

using namespace nn;

namespace {

ops::Gate unit_of(const spec::GateSpec& gate) {
    if (gate.name == "gelu") return ops::Gate::gelu;
    if (gate.name == "relu2") return ops::Gate::relu;
    if (gate.name == "clamped") return {ops::Gate::clamped, static_cast<float>(gate.limit)};
    check(gate.name == "silu", "no gated unit is named \"", gate.name, "\"");
    return ops::Gate::silu;
}

// The matrices of all experts, and their biases.
WeightAndBias stacked(const std::string& name, const std::string& stored, Shape shape, Role role, Role role_of_bias,
                      double std, bool bias) {
    WeightAndBias layer{.weight = {.name = name + ".weight",
                                   .shape = shape,
                                   .role = role,
                                   .init = {.std = std},
                                   .stored_as = {.name = stored + ".weight"}}};
    if (bias)
        layer.bias = Parameter{.name = name + ".bias",
                               .shape = {shape[0], shape[1]},
                               .role = role_of_bias,
                               .stored_as = {.name = stored + ".bias"}};
    return layer;
}

// gate over up, as rows of one tensor, and down as another.
template <class Gate, class Down>
void store_pair(const std::string& part, Gate& gate, Gate& up, Down& down) {
    const int64_t rows = gate.shape.rank() == 3 ? gate.shape[1] : gate.shape[0];
    gate.stored_as = {.name = part + ".input_linear.weight", .first_row = 0, .rows = 2 * rows, .row_step = 1};
    up.stored_as = gate.stored_as;
    up.stored_as.first_row = rows;
    down.stored_as = {.name = part + ".output_linear.weight"};
}

// gate and up are alternating columns of one tensor of all experts, (E, C, 2 F), down is (E, F, C) of another.
void store_together(const std::string& experts, WeightAndBias& gate, WeightAndBias& up, WeightAndBias& down) {
    const auto store = [&](WeightAndBias& layer, const char* name, autograd::StoredAs rows) {
        layer.weight.stored_as = rows;
        layer.weight.stored_as.name = concat(experts, ".", name);
        layer.weight.stored_as.transposed = true;
        if (!layer.bias) return;
        layer.bias->stored_as = rows;
        layer.bias->stored_as.name = concat(experts, ".", name, "_bias");
    };
    const int64_t rows = 2 * gate.weight.shape[1];
    store(gate, "gate_up_proj", {.first_row = 0, .rows = rows, .row_step = 2});
    store(up, "gate_up_proj", {.first_row = 1, .rows = rows, .row_step = 2});
    store(down, "down_proj", {});
}

}  // namespace

FeedForward::Experts FeedForward::make_experts(const spec::ModelSpec& s, const spec::LayerSpec& layer,
                                               const FeedForwardNames& names, const FeedForwardNames& stored) {
    const spec::MixtureSpec& e = *layer.mixture();
    const auto matrices = [&](const char* FeedForwardNames::*matrix, Shape shape, Role role, Role of_bias, double std) {
        return stacked(concat(names.part, ".experts.", names.*matrix),
                       concat(stored.part, ".experts.*.", stored.*matrix), shape, role, of_bias, std, e.bias);
    };
    const int64_t width = e.latent > 0 ? e.latent : s.width;
    const Shape column{e.experts, e.ffn, width}, row{e.experts, width, e.ffn};
    Experts all{
        .router = make_linear(names.part + ".gate", s.width, e.experts, {.role = Role::router, .std = s.init_std}),
        .up = matrices(&FeedForwardNames::up, column, Role::expert_column, Role::expert_column, s.init_std),
        .down = matrices(&FeedForwardNames::down, row, Role::expert_row, Role::expert, residual_std(s))};
    if (layer.gate.gated)
        all.gate = matrices(&FeedForwardNames::gate, column, Role::expert_column, Role::expert_column, s.init_std);
    if (e.latent > 0) {  // each rank projects the rows that it routes
        all.into_latent =
            make_linear(names.part + ".fc1_latent_proj", s.width, e.latent, {.role = Role::router, .std = s.init_std});
        all.from_latent = make_linear(names.part + ".fc2_latent_proj", e.latent, s.width,
                                      {.role = Role::router, .std = residual_std(s)});
    }
    const std::string router = concat(stored.part, ".", stored.router);
    all.router.weight.stored_as.name = router + ".weight";
    if (e.router_bias)
        all.router.bias = Parameter{.name = names.part + ".gate.bias",
                                    .shape = {e.experts},
                                    .role = Role::router,
                                    .init = {.std = s.init_std},
                                    .stored_as = {.name = router + ".bias"}};
    if (e.expert_bias)
        all.choice_bias = Parameter{.name = concat(names.part, ".", names.bias),
                                    .shape = {e.experts},
                                    .role = Role::expert_bias,
                                    .training = autograd::Training::counted};
    if (e.shared_gate)
        all.shared_gate =
            make_linear(names.part + ".shared_expert_gate", s.width, 1, {.role = Role::norm, .std = s.init_std});
    if (stored.together) store_together(stored.part + ".experts", *all.gate, all.up, all.down);
    if (!stored.pairs_of.empty()) store_pair(stored.part, all.gate->weight, all.up.weight, all.down.weight);
    return all;
}

FeedForward::FeedForward(const spec::ModelSpec& s, int64_t layer, const FeedForwardNames& names,
                         const FeedForwardNames& stored)
    : layer_(layer) {
    const spec::LayerSpec of_layer = spec::layer(s, layer);
    unit_ = unit_of(of_layer.gate);
    const auto dense = [&](const std::string& of, int64_t F, bool bias = false) {
        const LinearOptions column{.role = Role::column, .std = s.init_std, .bias = bias};
        const LinearOptions row{.role = Role::row, .std = residual_std(s), .bias = bias};
        Dense all{.gate = {},
                  .up = make_linear(of + "." + names.up, s.width, F, column),
                  .down = make_linear(of + "." + names.down, F, s.width, row)};
        if (of_layer.gate.gated) all.gate = make_linear(of + "." + names.gate, s.width, F, column);
        if (!stored.pairs_of.empty()) store_pair(stored.pairs_of, all.gate->weight, all.up.weight, all.down.weight);
        return all;
    };
    if (const spec::MlpSpec* mlp = of_layer.mlp()) {
        dense_ = dense(names.part, mlp->ffn, mlp->bias);
        gate_scale_ = mlp->gate_scale, output_scale_ = mlp->output_scale;
        if (names.fused)
            store_as_rows({&dense_->gate->weight, &dense_->up.weight}, names.part + "." + names.fused + ".weight");
        return;
    }
    spec_ = *of_layer.mixture();
    if (spec_.shared_ffn > 0) dense_ = dense(names.part + "." + names.shared, spec_.shared_ffn);
    experts_.emplace(make_experts(s, of_layer, names, stored));
}

Var FeedForward::mlp(Tape& tape, const Var& x) {
    if (!dense_->gate) {
        const Var z = dense_->up(tape, x);
        return dense_->down(tape, swiglu(tape, z, z, unit_));
    }
    if (gate_scale_ == 1)
        return scale(tape, swiglu_mlp(tape, x, *dense_->gate, dense_->up, dense_->down, unit_), output_scale_);
    const std::vector<Var> in = projections(tape, x, {*dense_->gate, dense_->up});
    const Var y = dense_->down(tape, swiglu(tape, scale(tape, in[0], gate_scale_), in[1], unit_));
    return scale(tape, y, output_scale_);
}

Var FeedForward::operator()(Tape& tape, const Var& x, const Batch& batch) {
    if (!experts_) return mlp(tape, x);
    MixtureLayer layer{.spec = spec_,
                       .layer = layer_,
                       .router = experts_->router,
                       .expert_bias = experts_->choice_bias ? &*experts_->choice_bias : nullptr,
                       .unit = unit_,
                       .gate = experts_->gate ? *experts_->gate : experts_->up,
                       .up = experts_->up,
                       .down = experts_->down,
                       .into_latent = experts_->into_latent ? &experts_->into_latent->weight : nullptr,
                       .from_latent = experts_->from_latent ? &experts_->from_latent->weight : nullptr};
    if (dense_)
        layer.shared = [&](const Var& in) {
            const Var y = mlp(tape, in);
            return experts_->shared_gate ? sigmoid_gate(tape, y, in, experts_->shared_gate->weight) : y;
        };
    return mixture(tape, x, layer, batch);
}

void own(autograd::Unit& unit, FeedForward& part) {
    if (part.experts_) {
        FeedForward::Experts& e = *part.experts_;
        own(unit, e.router);
        if (e.choice_bias) {
            unit.parameters.push_back(&*e.choice_bias);
            unit.gradients_in_forward.push_back(&*e.choice_bias);
        }
        if (e.into_latent) own_all(unit, *e.into_latent, *e.from_latent);
        if (e.gate) own(unit, *e.gate);
        own_all(unit, e.up, e.down);
        if (e.shared_gate) own(unit, *e.shared_gate);
    }
    if (!part.dense_) return;
    if (part.dense_->gate)
        own_adjacent(unit, {&*part.dense_->gate, &part.dense_->up});
    else
        own(unit, part.dense_->up);
    own(unit, part.dense_->down);
}

}  // namespace tutti::models
