// simulate/prediction.h: the prediction for a job: time with an interval, rates under every convention, memory.
#pragma once

#include <string>

#include "tutti/base/json.h"
#include "tutti/hardware/cluster.h"
#include "tutti/simulate/footprint.h"
#include "tutti/simulate/step_time.h"

namespace tutti::simulate {

struct Prediction {
    StepTime time;
    Footprint memory;
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

// UsageError: the layout is impossible, or the device has no such products.
Prediction predict(const Job& job, const hardware::Cluster& cluster, const Physics& physics = {});

// How far 80 of 100 measured steps are from the predicted one at most, as a logarithm: as measured on runs that were
// left out of the fit.
double uncertainty(const Job& job, const hardware::Cluster& cluster);

// "step_time_s", "step_time_low_s", "step_time_high_s", "tokens_per_s", "tokens_per_s_per_rank", "mfu_causal",
// "mfu_full", "hfu", "mfu_of_precision_peak" (causal), "peak_bytes", "offloaded_bytes", "memory" by kind, "time" by
// kind in seconds.
Json describe(const Prediction& prediction);

}  // namespace tutti::simulate
