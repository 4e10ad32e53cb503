#include "tutti/models/feed_forward.h"

#include "tutti/models/decoder.h"
#include "tutti/nn/mixture.h"
#include "tutti/spec/layers.h"

namespace tutti::models {

using namespace nn;

FeedForward::FeedForward(const spec::ModelSpec& s, int64_t layer, const FeedForwardNames& names,
                         const FeedForwardNames& stored)
    : layer_(layer) {
    const spec::LayerSpec of_layer = spec::layer(s, layer);
    const auto dense = [&](const std::string& of, int64_t F, bool bias = false) {
        const LinearOptions column{.role = Role::column, .std = s.init_std, .bias = bias};
        const LinearOptions row{.role = Role::row, .std = residual_std(s), .bias = bias};
        return Dense{make_linear(concat(of, ".", names.gate), s.width, F, column),
                     make_linear(concat(of, ".", names.up), s.width, F, column),
                     make_linear(concat(of, ".", names.down), F, s.width, row)};
    };
    if (of_layer.mixture() == nullptr) {
        dense_ = dense(names.part, of_layer.mlp().ffn, of_layer.mlp().bias);
        if (of_layer.mlp().gate == "gelu") gate_ = ops::Gate::gelu;
        if (names.fused)
            store_as_rows({&dense_->gate.weight, &dense_->up.weight}, concat(names.part, ".", names.fused, ".weight"));
        return;
    }
    const spec::MixtureSpec& e = spec_ = *of_layer.mixture();
    if (e.shared_ffn > 0) dense_ = dense(concat(names.part, ".", names.shared), e.shared_ffn);
    const auto stacked = [&](const char* FeedForwardNames::*matrix, Shape shape, Role role, double std) {
        return Parameter{.name = concat(names.part, ".experts.", names.*matrix, ".weight"),
                         .shape = shape,
                         .role = role,
                         .init = {.std = std},
                         .stored_as = {.name = concat(stored.part, ".experts.*.", stored.*matrix, ".weight")}};
    };
    const Shape column{e.experts, e.ffn, s.width}, row{e.experts, s.width, e.ffn};
    experts_.emplace(Experts{
        .router = make_linear(names.part + ".gate", s.width, e.experts, {.role = Role::router, .std = s.init_std}),
        .gate = stacked(&FeedForwardNames::gate, column, Role::expert_column, s.init_std),
        .up = stacked(&FeedForwardNames::up, column, Role::expert_column, s.init_std),
        .down = stacked(&FeedForwardNames::down, row, Role::expert_row, residual_std(s))});
    experts_->router.weight.stored_as.name = stored.part + ".gate.weight";
    if (e.expert_bias)
        experts_->bias = Parameter{.name = concat(names.part, ".", names.bias),
                                   .shape = {e.experts},
                                   .role = Role::expert_bias,
                                   .training = autograd::Training::counted};
    if (e.shared_gate)
        experts_->shared_gate =
            make_linear(names.part + ".shared_expert_gate", s.width, 1, {.role = Role::norm, .std = s.init_std});
}

Var FeedForward::operator()(Tape& tape, const Var& x, const Batch& batch) {
    const auto swiglu = [&](const Var& in) {
        return swiglu_mlp(tape, in, dense_->gate, dense_->up, dense_->down, gate_);
    };
    if (!experts_) return swiglu(x);
    MixtureLayer layer{.spec = spec_,
                       .layer = layer_,
                       .router = experts_->router.weight,
                       .expert_bias = experts_->bias ? &*experts_->bias : nullptr,
                       .gate = experts_->gate,
                       .up = experts_->up,
                       .down = experts_->down};
    if (dense_)
        layer.shared = [&](const Var& in) {
            const Var y = swiglu(in);
            return experts_->shared_gate ? sigmoid_gate(tape, y, in, experts_->shared_gate->weight) : y;
        };
    return mixture(tape, x, layer, batch);
}

void own(autograd::Unit& unit, FeedForward& part) {
    if (part.experts_) {
        FeedForward::Experts& e = *part.experts_;
        own(unit, e.router);
        if (e.bias) {
            unit.parameters.push_back(&*e.bias);
            unit.gradients_in_forward.push_back(&*e.bias);
        }
        for (Parameter* p : {&e.gate, &e.up, &e.down}) unit.parameters.push_back(p);
        if (e.shared_gate) own(unit, *e.shared_gate);
    }
    if (!part.dense_) return;
    own_adjacent(unit, {&part.dense_->gate, &part.dense_->up});
    own(unit, part.dense_->down);
}

}  // namespace tutti::models
