// optim/balance.cpp: the rule of the biases of experts, whose gradient is the number of choices of each expert (Wang et
// al. 2024).
#include "tutti/ops/ops.h"
#include "tutti/optim/rule.h"

namespace tutti::optim {

namespace {

class Balance final : public UpdateRule {
  public:
    explicit Balance(const spec::OptimizerSpec& spec) : rate_(spec.expert_bias_rate) {}

    bool updates(const Parameter& parameter) const override {
        return parameter.training == autograd::Training::counted;
    }
    std::vector<StateField> state(const Parameter&) const override { return {}; }

    void step(ops::Context& ctx, std::span<const Piece> pieces, const StepNumbers& numbers) const override {
        for (const Piece& piece : pieces)
            ops::balance(ctx, piece.shard.master, piece.gradient, static_cast<float>(numbers.mean_load),
                         static_cast<float>(rate_));
    }

  private:
    double rate_;
};

}  // namespace

std::unique_ptr<UpdateRule> balance(const spec::OptimizerSpec& spec) { return std::make_unique<Balance>(spec); }

}  // namespace tutti::optim
