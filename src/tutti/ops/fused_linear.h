// ops/fused_linear.h: linear layers of one input with outputs side by side, y = [x w_0^T + b_0 | x w_1^T + b_1 ...],
// such as q, k and v or gate and up. Weights that are adjacent in one buffer, as in a flat unit (parallel/flat_unit.h),
// form one matrix, so one product computes all layers; likewise for gradients. Other weights, such as those with their
// own memory, or q beside replicated key and value heads, need a product each. The sums are the same, except that dx is
// then rounded after each product, from the last layer to the first.
#pragma once

#include <vector>

#include "tutti/ops/ops.h"

namespace tutti::ops {

struct FusedLayer {
    Operand w;      // (N_i, K)
    Tensor b = {};  // (N_i); undefined: none
};
// x (..., K) to y (..., sum of N_i)
Tensor fused_linear(Context& ctx, const Operand& x, const std::vector<FusedLayer>& layers, Products* later = nullptr);
// [sum +] sum of dy_i w_i; `sum` and `later` as in linear_backward_input. `later` gets the last product that is added.
Tensor fused_linear_backward_input(Context& ctx, const Operand& dy, const std::vector<Operand>& weights,
                                   Tensor sum = {}, Products* later = nullptr);

struct FusedGradient {
    Tensor dw;               // (N_i, K) f32
    bool accumulate = true;  // dw = [dw +] dy_i^T x
};
void fused_linear_backward_weight(Context& ctx, const Operand& dy, const Operand& x,
                                  const std::vector<FusedGradient>& gradients);
// db_i += sum over rows of dy_i, for biases of all layers.
void fused_bias_backward(Context& ctx, const Tensor& dy, const std::vector<Tensor>& db);

}  // namespace tutti::ops
