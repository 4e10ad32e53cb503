// train/step.h: one optimizer update, as the algorithm box of a paper would have it.
#pragma once

#include <string>

#include "tutti/base/trace.h"
#include "tutti/models/model.h"
#include "tutti/optim/optimizer.h"
#include "tutti/parallel/data_parallel.h"
#include "tutti/train/batches.h"

namespace tutti::train {

// What a step works on. The trainer owns the parts.
struct StepContext {
    ops::Context& ctx;
    models::Model& model;
    parallel::DataParallel& data_parallel;
    optim::Optimizer& optimizer;
    Batches& batches;
    const parallel::Groups& groups;
    const spec::RunSpec& run;
    Trace* trace = nullptr;  // where the step notes what it does when; nullptr: nowhere
};

struct StepResult {
    double loss = 0;       // mean over the terms of the global batch, before the update
    double grad_norm = 0;  // before clipping
    double lr = 0;
    int64_t terms = 0;     // tokens (rows for the mlp)
    bool skipped = false;  // loss or gradient not finite: nothing was updated
    std::string culprit;   // what was not finite: "loss" or the first such parameter
};

// Step `step`, counted from 1. Collective: every rank gets the same result, to the bit.
StepResult train_step(StepContext& context, int64_t step);

// Mean loss over the first `batches` microbatches of `source`, whose steps have one microbatch per rank. The same for
// any number of ranks; nothing is recorded or updated.
double evaluate(StepContext& context, Batches& source, int64_t batches);

}  // namespace tutti::train
