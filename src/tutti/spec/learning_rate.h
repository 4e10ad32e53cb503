// spec/learning_rate.h: the learning rate of a step, as a function of the config.
#pragma once

#include <cstdint>

#include "tutti/spec/run_spec.h"

namespace tutti::spec {

// The learning rate of step `step` of a course of `steps`, from 1. The warm-up is linear from `from`, the rate before
// the course: in step warmup_steps it is lr. Then
//   cosine    min_lr + (lr - min_lr) (1 + cos(pi f)) / 2,   f = (step - warmup) / (steps - warmup)
//   linear    lr + (min_lr - lr) f
//   constant  lr
//   wsd       lr, then linearly to min_lr over the last decay_steps (0: a tenth of the steps); Hu et al. 2024
double learning_rate(const OptimizerSpec& optimizer, int64_t steps, int64_t step, double from = 0);
// Steps of the decay of wsd.
int64_t decay_steps(const OptimizerSpec& optimizer, int64_t steps);

// Of a step of the run, or of a stage of one (stages.h), whose course may have begun in a stage before.
double learning_rate(const RunSpec& run, int64_t step);

}  // namespace tutti::spec
