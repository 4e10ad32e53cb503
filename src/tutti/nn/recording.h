// nn/recording.h: what the files of differentiable functions share when they record a node.
#pragma once

#include <utility>

#include "tutti/nn/functions.h"

namespace tutti::nn {

// y, as the tape recorded it; under selective recompute it is made by `make` when the backward needs it.
template <class Make>
Var recomputable(const Tape& tape, Var y, const Make& make) {
    if (tape.selective() && tape.recording()) y.recomputable = autograd::Recomputable(make);
    return y;
}

// Whether the term that comes now is to be added to the gradient, or is its first one and overwrites.
inline bool adds_to_gradient(Parameter& p) { return !std::exchange(p.gradient_unset, false); }

// For kernels that can only add.
inline const Tensor& gradient_to_add_to(ops::Context& ctx, Parameter& p) {
    if (!adds_to_gradient(p)) ops::fill(ctx, p.gradient, 0);
    return p.gradient;
}

inline std::vector<Parameter*> parameters_of(const Affine& layer) {
    std::vector<Parameter*> parameters = {&layer.weight};
    if (layer.bias) parameters.push_back(layer.bias);
    return parameters;
}

}  // namespace tutti::nn
