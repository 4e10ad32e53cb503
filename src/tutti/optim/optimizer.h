// optim/optimizer.h: AdamW and SGD with momentum over a list of parameters, and the norm of their gradients.
// Reads Parameter::gradient, updates master and rewrites value in the same pass. Called by train/step.cpp.
#pragma once

#include <string>
#include <vector>

#include "tutti/autograd/parameter.h"
#include "tutti/spec/run_spec.h"

namespace tutti::optim {

using autograd::Parameter;

class Optimizer {
  public:
    // Allocates the moments (f32, zero).
    Optimizer(ops::Context& ctx, std::vector<Parameter*> parameters, const spec::OptimizerSpec& spec);

    // One update with rate `lr`; gradients are multiplied by grad_scale (the clip factor) on the way.
    void step(double lr, double grad_scale);

    int64_t updates() const { return updates_; }
    void set_updates(int64_t updates) { updates_ = updates; }
    // The moments, named "optimizer.m.<parameter>", in the shape of the parameter: what a checkpoint saves beside it.
    std::vector<NamedTensor> state() const;

  private:
    struct Slot {
        Parameter* parameter;
        Tensor first, second;  // m and v; for SGD the momentum and nothing
    };
    ops::Context& ctx_;
    spec::OptimizerSpec spec_;
    std::vector<Slot> slots_;
    int64_t updates_ = 0;
};

// L2 norm over all gradients, in f64 over fixed blocks: the same for any thread count. A value that is not finite says
// that some gradient is not.
double gradient_norm(ops::Context& ctx, const std::vector<Parameter*>& parameters);

// Factor that brings `norm` down to `clip` (0: off): min(1, clip / (norm + 1e-6)), PyTorch's clip_grad_norm_.
double clip_factor(double norm, double clip);

// The first parameter whose gradient is not finite, or nullptr.
Parameter* first_non_finite(ops::Context& ctx, const std::vector<Parameter*>& parameters);

void zero_gradients(ops::Context& ctx, const std::vector<Parameter*>& parameters);

}  // namespace tutti::optim
