// optim/elementwise.cpp: the rules that update each element by itself, in one kernel over all pieces: AdamW (Loshchilov
// and Hutter 2019), SGD with momentum and coupled weight decay, and Lion (Chen et al. 2023).
#include <cmath>
#include <utility>

#include "tutti/ops/ops.h"
#include "tutti/optim/rule.h"

namespace tutti::optim {

namespace {

using Pieces = std::span<const kernels::OptimizerPiece>;

class Elementwise final : public UpdateRule {
  public:
    using Update = std::function<void(ops::Context&, Pieces, const StepNumbers&)>;
    // `moments`: their names, and the decay of each.
    Elementwise(const spec::OptimizerSpec& spec, std::vector<std::pair<std::string, double>> moments, Update update)
        : spec_(spec), moments_(std::move(moments)), update_(std::move(update)) {}

    std::vector<StateField> state(const Parameter& parameter) const override { return fields_of(types(parameter)); }

    void step(ops::Context& ctx, std::span<const Piece> pieces, const StepNumbers& numbers) const override {
        update_(ctx, kernel_pieces(pieces, numbers, [&](const Parameter& p) { return types(p); }), numbers);
    }

  private:
    std::vector<MomentType> types(const Parameter& parameter) const { return moments_of(spec_, parameter, moments_); }

    spec::OptimizerSpec spec_;
    std::vector<std::pair<std::string, double>> moments_;
    Update update_;
};

}  // namespace

std::unique_ptr<UpdateRule> adamw(const spec::OptimizerSpec& spec) {
    const auto update = [spec](ops::Context& ctx, Pieces pieces, const StepNumbers& numbers) {
        const auto t = static_cast<double>(numbers.update);
        ops::call(ctx, &kernels::KernelTable::adamw, "adamw",
                  kernels::AdamW{.pieces = pieces,
                                 .lr = static_cast<float>(numbers.lr),
                                 .beta1 = static_cast<float>(spec.beta1),
                                 .beta2 = static_cast<float>(spec.beta2),
                                 .eps = static_cast<float>(spec.eps),
                                 .correction1 = static_cast<float>(1 - std::pow(spec.beta1, t)),
                                 .correction2 = static_cast<float>(1 - std::pow(spec.beta2, t)),
                                 .grad_scale = static_cast<float>(numbers.grad_scale)});
    };
    return std::make_unique<Elementwise>(
        spec, std::vector{std::pair<std::string, double>{"m", spec.beta1}, {"v", spec.beta2}}, update);
}

std::unique_ptr<UpdateRule> sgd(const spec::OptimizerSpec& spec) {
    const auto update = [spec](ops::Context& ctx, Pieces pieces, const StepNumbers& numbers) {
        ops::call(ctx, &kernels::KernelTable::sgd, "sgd",
                  kernels::Sgd{.pieces = pieces,
                               .lr = static_cast<float>(numbers.lr),
                               .momentum = static_cast<float>(spec.momentum),
                               .grad_scale = static_cast<float>(numbers.grad_scale)});
    };
    return std::make_unique<Elementwise>(spec, std::vector{std::pair<std::string, double>{"momentum", spec.momentum}},
                                         update);
}

std::unique_ptr<UpdateRule> lion(const spec::OptimizerSpec& spec) {
    const auto update = [spec](ops::Context& ctx, Pieces pieces, const StepNumbers& numbers) {
        ops::call(ctx, &kernels::KernelTable::lion, "lion",
                  kernels::Lion{.pieces = pieces,
                                .lr = static_cast<float>(numbers.lr),
                                .beta1 = static_cast<float>(spec.beta1),
                                .beta2 = static_cast<float>(spec.beta2),
                                .grad_scale = static_cast<float>(numbers.grad_scale)});
    };
    return std::make_unique<Elementwise>(spec, std::vector{std::pair<std::string, double>{"m", spec.beta2}}, update);
}

}  // namespace tutti::optim
