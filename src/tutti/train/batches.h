// train/batches.h: the microbatches of a step, as a pure function of (data, seed, step, index). Nothing is carried from
// step to step, so a resumed run continues with the samples that it would have seen.
#pragma once

#include <memory>

#include "tutti/data/sampler.h"
#include "tutti/nn/batch.h"
#include "tutti/ops/context.h"
#include "tutti/spec/run_spec.h"

namespace tutti::train {

class Batches {
  public:
    virtual ~Batches() = default;
    // Microbatch `index` of step `step` (from 1): sequences [index * micro_batch, (index + 1) * micro_batch) of the
    // global batch, which begins at sample (step - 1) * global_batch. grad_scale is 1 / terms(step).
    virtual nn::Batch microbatch(int64_t step, int64_t index) = 0;
    // What the loss of the step is a mean over: the valid tokens (rows for the mlp) of its global batch.
    virtual int64_t terms(int64_t step) = 0;
};

// Windows of tokens.
std::unique_ptr<Batches> token_batches(Device& device, const data::Sampler& sampler, int64_t micro_batch,
                                       int64_t global_batch);
// Standard normal features and targets of the mlp family, keyed by the global row.
std::unique_ptr<Batches> noise_batches(ops::Context& ctx, const spec::RunSpec& run);

}  // namespace tutti::train
