// optim/adamw.cpp: AdamW (Loshchilov and Hutter 2019), in one kernel over all pieces.
#include <cmath>

#include "tutti/ops/ops.h"
#include "tutti/optim/rule.h"

namespace tutti::optim {

namespace {

class AdamW final : public UpdateRule {
  public:
    explicit AdamW(const spec::OptimizerSpec& spec) : spec_(spec) {}

    std::vector<StateField> state(const Parameter& parameter) const override { return fields_of(moments(parameter)); }

    void step(ops::Context& ctx, std::span<const Piece> pieces, const StepNumbers& numbers) const override {
        const std::vector<kernels::OptimizerPiece> updated =
            kernel_pieces(pieces, numbers, [&](const Parameter& p) { return moments(p); });
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
    std::vector<MomentType> moments(const Parameter& parameter) const {
        return moments_of(spec_, parameter, {{"m", spec_.beta1}, {"v", spec_.beta2}});
    }

    spec::OptimizerSpec spec_;
};

}  // namespace

std::unique_ptr<UpdateRule> adamw(const spec::OptimizerSpec& spec) { return std::make_unique<AdamW>(spec); }

}  // namespace tutti::optim
