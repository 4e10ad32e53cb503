// optim/sgd.cpp: SGD with momentum and coupled weight decay, in one kernel over all pieces.
#include "tutti/ops/ops.h"
#include "tutti/optim/rule.h"

namespace tutti::optim {

namespace {

class Sgd final : public UpdateRule {
  public:
    explicit Sgd(const spec::OptimizerSpec& spec) : momentum_(spec.momentum) {}

    std::vector<StateField> state(const Parameter&) const override { return {{"momentum"}}; }

    void step(ops::Context& ctx, std::span<const Piece> pieces, const StepNumbers& numbers) const override {
        const std::vector<kernels::OptimizerPiece> updated = kernel_pieces(pieces);
        ops::call(ctx, &kernels::KernelTable::sgd, "sgd",
                  kernels::Sgd{.pieces = updated,
                               .lr = static_cast<float>(numbers.lr),
                               .momentum = static_cast<float>(momentum_),
                               .grad_scale = static_cast<float>(numbers.grad_scale)});
    }

  private:
    double momentum_;
};

}  // namespace

std::unique_ptr<UpdateRule> sgd(const spec::OptimizerSpec& spec) { return std::make_unique<Sgd>(spec); }

}  // namespace tutti::optim
