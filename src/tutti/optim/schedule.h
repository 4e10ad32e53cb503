// optim/schedule.h: the learning rate of each step, a pure function of the step.
#pragma once

#include "tutti/spec/run_spec.h"

namespace tutti::optim {

// The rate of update `step` (1 .. total_steps). Warm-up is linear: step / warmup_steps of lr. Then
//   cosine    min_lr + (lr - min_lr) (1 + cos(pi f)) / 2,   f = (step - warmup) / (total - warmup)
//   linear    lr + (min_lr - lr) f
//   constant  lr
//   wsd       lr, then linearly to min_lr over the last decay_steps (0: a tenth of the steps); Hu et al. 2024
double learning_rate(const spec::OptimizerSpec& optimizer, int64_t total_steps, int64_t step);

}  // namespace tutti::optim
