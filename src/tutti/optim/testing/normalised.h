// optim/testing/normalised.h: a rule of whole matrices for tests. Its step is the momentum divided by its Frobenius
// norm, which no rank can know from a piece:
//   buf = 0.9 buf + grad_scale g;  x = buf / ||buf||_F for each matrix;  p -= lr (x + decay p)
// The norm is an exact sum, so x has the same bits wherever the same buf comes together.
#pragma once

#include <cmath>
#include <vector>

#include "tutti/ops/ops.h"
#include "tutti/optim/rule.h"

namespace tutti::optim::testing {

class Normalised final : public UpdateRule {
  public:
    // `type`: of the values that go to the owners. `seen` is called with the matrices of a wave before their step, on
    // their owner.
    explicit Normalised(DType type = DType::f32, WholeMatrices::Transform seen = nullptr)
        : type_(type), seen_(std::move(seen)) {}

    bool updates(const Parameter& parameter) const override { return parameter.shape.rank() >= 2; }
    bool whole_matrices() const override { return true; }
    std::vector<StateField> state(const Parameter&) const override { return {{"momentum"}}; }

    void step(ops::Context& ctx, std::span<const Piece> pieces, const StepNumbers& numbers) const override {
        std::vector<Tensor> values;
        for (const Piece& piece : pieces) {
            const Tensor& buf = piece.state[0];
            const Tensor g = ops::cast(ctx, piece.gradient, DType::f32, Purpose::workspace);
            ops::scale(ctx, g, static_cast<float>(numbers.grad_scale));
            ops::scale(ctx, buf, 0.9f);
            ops::accumulate(ctx, g, buf);
            values.push_back(ops::cast(ctx, buf, type_, Purpose::workspace));
        }
        numbers.whole_matrices->transform(pieces, values, type_, [&](std::span<const Tensor> matrices) {
            if (seen_) seen_(matrices);
            for (const Tensor& x : matrices) {
                const Tensor wide = ops::cast(ctx, x, DType::f32, Purpose::workspace);
                ops::Sum squares(ctx);
                squares.add_squares(wide);
                ops::scale(ctx, wide, static_cast<float>(1 / std::sqrt(squares.take().value())));
                ops::cast_into(ctx, wide, x);
            }
        });
        for (size_t i = 0; i < pieces.size(); ++i) {
            const auto lr = static_cast<float>(numbers.lr * pieces[i].lr_scale);
            const Tensor x = ops::cast(ctx, values[i], DType::f32, Purpose::workspace);
            ops::scale(ctx, x, -lr);
            ops::scale(ctx, pieces[i].shard.master, 1 - lr * static_cast<float>(pieces[i].weight_decay));
            ops::accumulate(ctx, x, pieces[i].shard.master);
            round_master(ctx, pieces[i].shard);
        }
    }

  private:
    DType type_;
    WholeMatrices::Transform seen_;
};

}  // namespace tutti::optim::testing
