// nn/recording.h: helpers of the differentiable functions to record nodes on the tape.
#pragma once

#include <utility>

#include "tutti/nn/functions.h"

namespace tutti::nn {

// Returns y. Under selective recompute y is not saved: `make` recomputes y when the backward needs it.
template <class Make>
Var recomputable(const Tape& tape, Var y, const Make& make) {
    if (tape.selective() && tape.recording()) y.recomputable = autograd::Recomputable(make);
    return y;
}

// Whether the next contribution is added to the gradient; false for the first one, which overwrites it.
inline bool adds_to_gradient(Parameter& p) { return !std::exchange(p.gradient_unset, false); }

// The gradient for a kernel that makes those of several parameters: of a frozen one a tensor that is thrown away.
inline Tensor gradient_or_scratch(ops::Context& ctx, const Parameter& p) {
    return p.frozen() ? ops::empty(ctx, p.part().shape, DType::f32, Purpose::workspace) : p.gradient;
}

// The same for kernels that can only add: set to zero before the first contribution.
inline Tensor gradient_to_add_to(ops::Context& ctx, Parameter& p) {
    const Tensor gradient = gradient_or_scratch(ctx, p);
    if (!adds_to_gradient(p)) ops::fill(ctx, gradient, 0);
    return gradient;
}

inline const Tensor* value_of(const Parameter* bias) { return bias ? &bias->value : nullptr; }

inline std::vector<Parameter*> parameters_of(const Affine& layer) {
    std::vector<Parameter*> parameters = {&layer.weight};
    if (layer.bias) parameters.push_back(layer.bias);
    return parameters;
}

}  // namespace tutti::nn
