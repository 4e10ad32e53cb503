// engine/batches.h: the microbatches of a step, as a pure function of (data, seed, step, index). No state passes from
// step to step, so a resumed run continues with the samples of an uninterrupted one.
#pragma once

#include <functional>
#include <limits>
#include <memory>

#include "tutti/data/sampler.h"
#include "tutti/nn/batch.h"
#include "tutti/ops/context.h"
#include "tutti/spec/run_spec.h"

namespace tutti::engine {

// The microbatches of a global batch that a rank computes: the rank's i-th is number i * ranks + rank of the step.
struct BatchShard {
    int64_t rank = 0, ranks = 1;
    nn::SequencePart part = {};  // of each sequence
    // The sum of a count over the ranks.
    std::function<int64_t(int64_t)> sum = [](int64_t count) { return count; };
};

class Batches {
  public:
    virtual ~Batches() = default;
    // The rank's microbatch `index` of step `step` (from 1). Microbatch number k of the step holds sequences
    // [k * micro_batch, (k + 1) * micro_batch) of the global batch, which begins at sample (step - 1) * global_batch,
    // in a stage of a run spec::StagePlace::sample_shift later. grad_scale is 1 / valid_tokens(step), or 0 without any.
    virtual nn::Batch microbatch(int64_t step, int64_t index) = 0;
    // The number of valid tokens (rows for the mlp) of the step's global batch, over which the loss is a mean; may be
    // 0. Collective.
    virtual int64_t valid_tokens(int64_t step) = 0;
    // The number of valid tokens in the microbatches `index` of all ranks; may be 0. Collective.
    virtual int64_t valid_tokens_of(int64_t step, int64_t index) = 0;
};

// Windows of tokens, with those that `depths` of multi-token prediction read. Samples from number `end` on have no
// target: they fill the last microbatch of an evaluation. The samples of a step begin `shift` later than (step - 1) *
// global_batch.
std::unique_ptr<Batches> token_batches(Device& device, const data::Sampler& sampler, int64_t micro_batch,
                                       int64_t global_batch, const BatchShard& share = {}, int64_t depths = 0,
                                       int64_t end = std::numeric_limits<int64_t>::max(), int64_t shift = 0);
// Random tokens, drawn once and the same in every microbatch, for steps without a data set; for the mlp family its
// noise. With data.documents = "respected" each sequence is one document.
std::unique_ptr<Batches> fixed_batches(ops::Context& ctx, const spec::RunSpec& run, const BatchShard& share = {});
// Batches of the same shapes whose values are not set, for devices without values.
std::unique_ptr<Batches> blank_batches(ops::Context& ctx, const spec::RunSpec& run, const BatchShard& share = {});
// Standard normal features and targets of the mlp family, keyed by the global row.
std::unique_ptr<Batches> noise_batches(ops::Context& ctx, const spec::RunSpec& run, const BatchShard& share = {});

}  // namespace tutti::engine
