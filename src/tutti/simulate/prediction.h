// simulate/prediction.h: a rehearsed step as a prediction: time by kind with an interval, rates under every convention,
// memory by purpose.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tutti/base/json.h"
#include "tutti/base/purpose.h"
#include "tutti/hardware/cluster.h"

namespace tutti::simulate {

// Seconds of a step by kind; they add up to the step.
struct StepTime {
    double products = 0, attention = 0, elementwise = 0, recompute = 0, optimizer = 0;
    double tp = 0, cp = 0, ep = 0, dp = 0;  // exposed communication
    double bubble = 0;                      // of the pipeline, its messages among it
    double offload = 0;                     // exposed copies from and to the memory of the host
    double other = 0;
    double total() const;
};

// By kind, for people: {"matrix products", seconds}. They add up to the step.
std::vector<std::pair<const char*, double>> kinds_of(const StepTime& time);

struct Prediction {
    StepTime time;
    MemoryByPurpose memory;    // of the fullest rank, at its peak
    double offloaded = 0;      // bytes of a rank in the memory of the host
    double low = 1, high = 1;  // 80 of 100 runs of a kind take between low and high times the predicted time
    double tokens = 0;         // of a step
    int ranks = 1;
    // FLOPs of a step and all ranks: the model's with causal and with full attention, and the hardware's.
    double model_causal = 0, model_full = 0, hardware = 0;
    double peak = 0, precision_peak = 0;  // FLOP/s of a rank: of 16 bits, and of the precision

    double seconds() const { return time.total(); }
    double tokens_per_s() const { return tokens / seconds(); }
    double share_of_peak(double flops) const { return flops / (seconds() * ranks * peak); }
};

// The kind of a device by which errors are told: its generation.
std::string kind_of(const hardware::Cluster& cluster);
// The half-width, as a logarithm, of the interval that holds 80 of 100 measured steps of these kinds
// (published::kinds_of()): of a source that the constants were fitted to, or of one that nothing has seen.
double half_width(const std::vector<std::string>& kinds, bool known_source);

// "step_time_s", "step_time_low_s", "step_time_high_s", "tokens_per_s", "tokens_per_s_per_rank", "mfu_causal",
// "mfu_full", "hfu", "mfu_of_precision_peak" (causal), "peak_bytes", "offloaded_bytes", "memory" by kind, "time" by
// kind in seconds.
Json describe(const Prediction& prediction);

}  // namespace tutti::simulate
