#include "tutti/optim/optimizer.h"

#include <algorithm>
#include <cmath>

#include "tutti/base/error.h"
#include "tutti/ops/ops.h"

namespace tutti::optim {

using kernels::KernelTable;

namespace {

// The rounded copy that the model reads, when it is not the master itself.
View rounded_copy(const ParameterShard& shard) {
    return shard.value.dtype() == DType::f32 ? View{} : shard.value.view();
}

}  // namespace

std::vector<ParameterShard> whole_shards(const std::vector<Parameter*>& parameters) {
    std::vector<ParameterShard> shards;
    for (Parameter* p : parameters) {
        const auto flat = [&](const Tensor& x) { return x.reshape({x.numel()}); };
        shards.push_back({p, 0, flat(p->master), flat(p->value), &p->gradient, 0});
    }
    return shards;
}

std::vector<mesh::HeldBlock> ParameterShard::blocks() const {
    return mesh::blocks_of_range(parameter->part(), begin, begin + master.numel());
}

Tensor ParameterShard::gradient() const {
    check(gradients->defined(), parameter->name, ": its gradient is read before a step has computed it");
    return gradients->reshape({gradients->numel()}).narrow(0, gradient_begin, master.numel());
}

Optimizer::Optimizer(ops::Context& ctx, std::vector<ParameterShard> shards, const spec::OptimizerSpec& spec,
                     Device* offload_device)
    : ctx_(ctx), spec_(spec), shards_(std::move(shards)) {
    check<UsageError>(spec.name == "adamw" || spec.name == "sgd", "optimizer.name must be adamw or sgd, got \"",
                      spec.name, "\"");
    for (const ParameterShard& shard : shards_) {
        const auto moment = [&] {
            const Tensor zeros = Tensor::empty(offload_device ? *offload_device : ctx.device, shard.master.shape(),
                                               DType::f32, Purpose::optimizer);
            ops::fill(ctx, zeros, 0);
            return zeros;
        };
        const bool trained = shard.parameter->trained();
        first_.push_back(trained ? moment() : Tensor{});
        second_.push_back(trained && spec.name == "adamw" ? moment() : Tensor{});
    }
}

void Optimizer::step(double lr, double grad_scale, double mean_load) {
    ++updates_;
    std::vector<kernels::OptimizerPiece> pieces;
    pieces.reserve(shards_.size());
    for (size_t i = 0; i < shards_.size(); ++i) {
        if (!shards_[i].parameter->trained()) {
            ops::balance(ctx_, shards_[i].master, shards_[i].gradient(), static_cast<float>(mean_load),
                         static_cast<float>(spec_.expert_bias_rate));
            continue;
        }
        pieces.push_back(
            {.master = shards_[i].master,
             .gradient = shards_[i].gradient(),
             .value = rounded_copy(shards_[i]),
             .m = first_[i],
             .v = second_[i].defined() ? second_[i].view() : View{},
             .weight_decay = static_cast<float>(shards_[i].parameter->decays() ? spec_.weight_decay : 0.0)});
    }
    if (spec_.name == "adamw") {
        const auto t = static_cast<double>(updates_);
        ops::call(ctx_, &KernelTable::adamw, "adamw",
                  kernels::AdamW{.pieces = pieces,
                                 .lr = static_cast<float>(lr),
                                 .beta1 = static_cast<float>(spec_.beta1),
                                 .beta2 = static_cast<float>(spec_.beta2),
                                 .eps = static_cast<float>(spec_.eps),
                                 .correction1 = static_cast<float>(1 - std::pow(spec_.beta1, t)),
                                 .correction2 = static_cast<float>(1 - std::pow(spec_.beta2, t)),
                                 .grad_scale = static_cast<float>(grad_scale)});
    } else {
        ops::call(ctx_, &KernelTable::sgd, "sgd",
                  kernels::Sgd{.pieces = pieces,
                               .lr = static_cast<float>(lr),
                               .momentum = static_cast<float>(spec_.momentum),
                               .grad_scale = static_cast<float>(grad_scale)});
    }
}

std::vector<StateTensor> Optimizer::state() const {
    std::vector<StateTensor> state;
    const bool adam = spec_.name == "adamw";
    for (size_t i = 0; i < shards_.size(); ++i) {
        const ParameterShard& shard = shards_[i];
        if (!shard.parameter->trained()) continue;
        const std::string& name = shard.parameter->name;
        state.push_back({(adam ? "optimizer.m." : "optimizer.momentum.") + name, &shard, first_[i]});
        if (adam) state.push_back({"optimizer.v." + name, &shard, second_[i]});
    }
    return state;
}

double clip_factor(double norm, double clip) { return clip > 0 ? std::min(1.0, clip / (norm + 1e-6)) : 1.0; }

double learning_rate(const spec::OptimizerSpec& o, int64_t total_steps, int64_t step) {
    check(step >= 1, "learning_rate: steps count from 1, got ", step);
    if (step <= o.warmup_steps) return o.lr * static_cast<double>(step) / static_cast<double>(o.warmup_steps);
    const auto fraction = [&](int64_t from) {
        const auto length = static_cast<double>(std::max<int64_t>(1, total_steps - from));
        return std::clamp(static_cast<double>(step - from) / length, 0.0, 1.0);
    };
    if (o.schedule == "constant") return o.lr;
    if (o.schedule == "linear") return o.lr + (o.min_lr - o.lr) * fraction(o.warmup_steps);
    if (o.schedule == "cosine")
        return o.min_lr + (o.lr - o.min_lr) * 0.5 * (1 + std::cos(M_PI * fraction(o.warmup_steps)));
    check<UsageError>(o.schedule == "wsd", "optimizer.schedule must be cosine, linear, constant or wsd, got \"",
                      o.schedule, "\"");
    const int64_t decay = o.decay_steps > 0 ? o.decay_steps : std::max<int64_t>(1, total_steps / 10);
    const int64_t start = std::max(o.warmup_steps, total_steps - decay);
    return step <= start ? o.lr : o.lr + (o.min_lr - o.lr) * fraction(start);
}

}  // namespace tutti::optim
