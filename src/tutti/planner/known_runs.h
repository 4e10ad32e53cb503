// planner/known_runs.h: published training runs of large models: layout, machine and model FLOP utilisation, as papers
// give them. What a prediction or a plan is compared with.
#pragma once

#include <string>

namespace tutti::planner {

struct KnownRun {
    const char *model, *cluster, *source;
    double parameters;  // of the model, all experts
    int devices;        // 0: not published
    double seq;
    double mfu;  // share of the peak; 0: not published
    struct Layout {
        int tp = 0, cp = 1, pp = 1, virtual_stages = 1, zero = 1;  // tp 0: not published
        int ep = 1;                                                // of mixtures above 1
        const char* schedule = nullptr;  // nullptr: 1F1B, interleaved where a rank has several stages
        const char* schedule_name() const {
            return schedule != nullptr ? schedule : virtual_stages > 1 ? "interleaved" : "1f1b";
        }
    } layout = {};
};

// "41.2 %: excellent" by the thresholds of CS231n, lecture 11 (2025): above 30 % is good, above 40 % excellent.
const char* verdict_of_mfu(double mfu);
// One line: the MFU of published runs on this device, or on devices of any kind.
std::string neighbours_of(const std::string& cluster);
// The published run with a known layout that is nearest in parameters, devices and sequence; of mixtures or of dense
// models.
const KnownRun& nearest_run(double parameters, int devices, double seq, bool experts);
std::string describe_layout(const KnownRun::Layout& layout);

}  // namespace tutti::planner
