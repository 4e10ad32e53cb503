// optim/momentum.cpp: the rules with one moment and one kernel over all pieces: SGD with momentum and coupled weight
// decay, and Lion (Chen et al. 2023).
#include "tutti/ops/ops.h"
#include "tutti/optim/rule.h"

namespace tutti::optim {

namespace {

class Sgd final : public UpdateRule {
  public:
    explicit Sgd(const spec::OptimizerSpec& spec) : spec_(spec) {}

    std::vector<StateField> state(const Parameter& parameter) const override { return fields_of(moments(parameter)); }

    void step(ops::Context& ctx, std::span<const Piece> pieces, const StepNumbers& numbers) const override {
        const std::vector<kernels::OptimizerPiece> updated =
            kernel_pieces(pieces, numbers, [&](const Parameter& p) { return moments(p); });
        ops::call(ctx, &kernels::KernelTable::sgd, "sgd",
                  kernels::Sgd{.pieces = updated,
                               .lr = static_cast<float>(numbers.lr),
                               .momentum = static_cast<float>(spec_.momentum),
                               .grad_scale = static_cast<float>(numbers.grad_scale)});
    }

  private:
    std::vector<MomentType> moments(const Parameter& parameter) const {
        return moments_of(spec_, parameter, {{"momentum", spec_.momentum}});
    }

    spec::OptimizerSpec spec_;
};

class Lion final : public UpdateRule {
  public:
    explicit Lion(const spec::OptimizerSpec& spec) : spec_(spec) {}

    std::vector<StateField> state(const Parameter& parameter) const override { return fields_of(moments(parameter)); }

    void step(ops::Context& ctx, std::span<const Piece> pieces, const StepNumbers& numbers) const override {
        const std::vector<kernels::OptimizerPiece> updated =
            kernel_pieces(pieces, numbers, [&](const Parameter& p) { return moments(p); });
        ops::call(ctx, &kernels::KernelTable::lion, "lion",
                  kernels::Lion{.pieces = updated,
                                .lr = static_cast<float>(numbers.lr),
                                .beta1 = static_cast<float>(spec_.beta1),
                                .beta2 = static_cast<float>(spec_.beta2),
                                .grad_scale = static_cast<float>(numbers.grad_scale)});
    }

  private:
    std::vector<MomentType> moments(const Parameter& parameter) const {
        return moments_of(spec_, parameter, {{"m", spec_.beta2}});
    }

    spec::OptimizerSpec spec_;
};

}  // namespace

std::unique_ptr<UpdateRule> sgd(const spec::OptimizerSpec& spec) { return std::make_unique<Sgd>(spec); }
std::unique_ptr<UpdateRule> lion(const spec::OptimizerSpec& spec) { return std::make_unique<Lion>(spec); }

}  // namespace tutti::optim
