#include "tutti/optim/optimizer.h"

#include <algorithm>
#include <cmath>

#include "tutti/ops/ops.h"

namespace tutti::optim {

using kernels::KernelTable;

namespace {

Tensor flat(const Tensor& x) { return x.reshape({x.numel()}); }

// The rounded copy that the model reads, when it is not the master itself.
View rounded_copy(const Parameter& p) { return p.value.dtype() == DType::f32 ? View{} : flat(p.value).view(); }

}  // namespace

Optimizer::Optimizer(ops::Context& ctx, std::vector<Parameter*> parameters, const spec::OptimizerSpec& spec)
    : ctx_(ctx), spec_(spec) {
    check<UsageError>(spec.name == "adamw" || spec.name == "sgd", "optimizer.name must be adamw or sgd, got \"",
                      spec.name, "\"");
    for (Parameter* p : parameters) {
        const auto moment = [&] { return ops::zeros(ctx, {p->master.numel()}, DType::f32, Purpose::optimizer); };
        Slot slot{p, moment(), {}};
        if (spec.name == "adamw") slot.second = moment();
        slots_.push_back(std::move(slot));
    }
}

void Optimizer::step(double lr, double grad_scale) {
    ++updates_;
    const double t = static_cast<double>(updates_);
    for (const Slot& slot : slots_) {
        const Parameter& p = *slot.parameter;
        const auto decay = static_cast<float>(p.decays() ? spec_.weight_decay : 0.0);
        if (spec_.name == "adamw") {
            ops::call(ctx_, &KernelTable::adamw, "adamw",
                      kernels::AdamW{.master = flat(p.master),
                                     .m = slot.first,
                                     .v = slot.second,
                                     .gradient = flat(p.gradient),
                                     .value = rounded_copy(p),
                                     .lr = static_cast<float>(lr),
                                     .beta1 = static_cast<float>(spec_.beta1),
                                     .beta2 = static_cast<float>(spec_.beta2),
                                     .eps = static_cast<float>(spec_.eps),
                                     .weight_decay = decay,
                                     .correction1 = static_cast<float>(1 - std::pow(spec_.beta1, t)),
                                     .correction2 = static_cast<float>(1 - std::pow(spec_.beta2, t)),
                                     .grad_scale = static_cast<float>(grad_scale)});
        } else {
            ops::call(ctx_, &KernelTable::sgd, "sgd",
                      kernels::Sgd{.master = flat(p.master),
                                   .momentum_buffer = slot.first,
                                   .gradient = flat(p.gradient),
                                   .value = rounded_copy(p),
                                   .lr = static_cast<float>(lr),
                                   .momentum = static_cast<float>(spec_.momentum),
                                   .weight_decay = decay,
                                   .grad_scale = static_cast<float>(grad_scale)});
        }
    }
}

std::vector<NamedTensor> Optimizer::state() const {
    std::vector<NamedTensor> state;
    const bool adam = spec_.name == "adamw";
    for (const Slot& slot : slots_) {
        const Parameter& p = *slot.parameter;
        const Shape& shape = p.master.shape();
        state.push_back({(adam ? "optimizer.m." : "optimizer.momentum.") + p.name, slot.first.reshape(shape)});
        if (adam) state.push_back({"optimizer.v." + p.name, slot.second.reshape(shape)});
    }
    return state;
}

double gradient_norm(ops::Context& ctx, const std::vector<Parameter*>& parameters) {
    const Tensor total = ops::zeros(ctx, {1}, DType::f64, Purpose::workspace);
    for (const Parameter* p : parameters) ops::sum_of_squares(ctx, p->gradient, total);
    return std::sqrt(ops::item(total));
}

double clip_factor(double norm, double clip) { return clip > 0 ? std::min(1.0, clip / (norm + 1e-6)) : 1.0; }

Parameter* first_non_finite(ops::Context& ctx, const std::vector<Parameter*>& parameters) {
    for (Parameter* p : parameters)
        if (!std::isfinite(gradient_norm(ctx, {p}))) return p;
    return nullptr;
}

void zero_gradients(ops::Context& ctx, const std::vector<Parameter*>& parameters) {
    for (Parameter* p : parameters) ops::fill(ctx, p->gradient, 0);
}

}  // namespace tutti::optim
