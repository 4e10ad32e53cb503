// engine/step.h: one optimizer update, written like the algorithm box of a paper.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tutti/engine/engine.h"

namespace tutti::engine {

struct StepResult {
    double loss = 0;  // mean over the terms of the global batch, before the update; NaN without any: no update
    // The mean losses of the tokens further ahead, by depth of multi-token prediction; of as many terms as `loss`.
    std::vector<double> later_losses;
    double grad_norm = 0;  // before clipping; with the schedule pipedream, that of the last microbatch
    double lr = 0;
    double loss_scale = 1;  // factor of the gradients in the passes; loss and norm are without it
    // Of the values that products with a recipe read: shares that saturated in 8 bits, and that became 0. Nothing: no
    // recipe, or stages that update by themselves.
    std::optional<double> saturated, flushed;
    int64_t valid_tokens = 0;    // tokens (rows for the mlp)
    nn::RoutingSummary routing;  // of a model with experts
    bool skipped = false;        // loss or gradient not finite: no update
    bool overflowed = false;     // skipped for its gradient, and the loss scale may fall
    std::string culprit;         // "loss", or the first parameter with such a gradient
};

// Step `step`, counted from 1. Collective: every rank gets the same result, to the bit.
StepResult train_step(Engine& engine, int64_t step);

// Mean loss, NaN without targets, over the first `batches` microbatches of `source`, whose steps have one microbatch
// per rank. The same for any number of ranks; no gradient is recorded and no weight updated. `is_stopped` is asked from
// time to time and must say the same on all ranks; nullopt when it says so before the end.
std::optional<double> evaluate(Engine& engine, Batches& source, int64_t batches,
                               const std::function<bool()>& is_stopped = {});

}  // namespace tutti::engine
