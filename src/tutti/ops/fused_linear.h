// ops/fused_linear.h: linear layers of one input whose outputs lie side by side, y = [x w_0^T + b_0 | x w_1^T + b_1
// ...], such as q, k and v. Weights that lie one behind another in one buffer, as those of a flat unit do
// (parallel/flat_unit.h), are the rows of one matrix and make one product; so do gradients. What does not lie so, such
// as weights with memory of their own, or q beside key and value heads that ranks have copies of, makes a product each:
// the same sums, but for dx, which is then rounded after each product that is added to it, from the last layer to the
// first.
#pragma once

#include <vector>

#include "tutti/ops/ops.h"

namespace tutti::ops {

struct FusedLayer {
    Tensor w;       // (N_i, K)
    Tensor b = {};  // (N_i); undefined: none
};
// x (..., K) to y (..., sum of N_i)
Tensor fused_linear(Context& ctx, const Tensor& x, const std::vector<FusedLayer>& layers, Products* later = nullptr);
// [sum +] sum of dy_i w_i; `sum` and `later` as in linear_backward_input. `later` gets the last product that is added.
Tensor fused_linear_backward_input(Context& ctx, const Tensor& dy, const std::vector<Tensor>& weights, Tensor sum = {},
                                   Products* later = nullptr);

struct FusedGradient {
    Tensor dw;               // (N_i, K) f32
    bool accumulate = true;  // dw = [dw +] dy_i^T x
};
void fused_linear_backward_weight(Context& ctx, const Tensor& dy, const Tensor& x,
                                  const std::vector<FusedGradient>& gradients);
// db_i += sum over rows of dy_i, for biases of all layers.
void fused_bias_backward(Context& ctx, const Tensor& dy, const std::vector<Tensor>& db);

}  // namespace tutti::ops
