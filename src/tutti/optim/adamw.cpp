// optim/adamw.cpp: AdamW with the moments m and v in f32 (Loshchilov and Hutter 2019), in one kernel over all pieces.
#include <cmath>

#include "tutti/ops/ops.h"
#include "tutti/optim/rule.h"

namespace tutti::optim {

namespace {

class AdamW final : public UpdateRule {
  public:
    explicit AdamW(const spec::OptimizerSpec& spec) : spec_(spec) {}

    std::vector<StateField> state(const Parameter&) const override { return {{"m"}, {"v"}}; }

    void step(ops::Context& ctx, std::span<const Piece> pieces, const StepNumbers& numbers) const override {
        const std::vector<kernels::OptimizerPiece> updated = kernel_pieces(pieces);
        const auto t = static_cast<double>(numbers.update);
        ops::call(ctx, &kernels::KernelTable::adamw, "adamw",
                  kernels::AdamW{.pieces = updated,
                                 .lr = static_cast<float>(numbers.lr),
                                 .beta1 = static_cast<float>(spec_.beta1),
                                 .beta2 = static_cast<float>(spec_.beta2),
                                 .eps = static_cast<float>(spec_.eps),
                                 .correction1 = static_cast<float>(1 - std::pow(spec_.beta1, t)),
                                 .correction2 = static_cast<float>(1 - std::pow(spec_.beta2, t)),
                                 .grad_scale = static_cast<float>(numbers.grad_scale)});
    }

  private:
    spec::OptimizerSpec spec_;
};

}  // namespace

std::unique_ptr<UpdateRule> adamw(const spec::OptimizerSpec& spec) { return std::make_unique<AdamW>(spec); }

}  // namespace tutti::optim
