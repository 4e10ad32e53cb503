// published/step.h: the time of a step of another system: the kernels and messages of a layer, priced as those of our
// own programs (simulate/machine_prices.h), with the deviations that its traits tell; layers, microbatches and stages
// added up.
#pragma once

#include <utility>
#include <vector>

#include "tutti/published/run.h"
#include "tutti/simulate/physics.h"

namespace tutti::published {

// Seconds of a step by kind; they add up to the step.
struct StepTime {
    double products = 0, attention = 0, passes = 0, experts = 0, recompute = 0;
    double host = 0;                                // the device waits for launches
    double tp = 0, cp = 0, ep = 0, pp = 0, dp = 0;  // visible communication, and what it slows down
    double head = 0;                                // with the loss
    double bubble = 0;                              // of the pipeline, uneven stages among it
    double optimizer = 0, other = 0;
    double total() const;
    StepTime& operator+=(const StepTime& more);
    friend StepTime operator*(double factor, const StepTime& time);
};
std::vector<std::pair<const char*, double>> kinds_of(const StepTime& time);

// A run without a problem.
StepTime step_time(const PublishedRun& run, const simulate::Physics& physics);

}  // namespace tutti::published
