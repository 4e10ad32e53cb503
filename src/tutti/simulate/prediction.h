// simulate/prediction.h: the time of a step by kind, and the interval of a prediction.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tutti/base/json.h"
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
// `to`, and `times` what it has more than `from`.
StepTime extended(const StepTime& from, const StepTime& to, double times);

// By kind, for people: {"matrix products", seconds}. They add up to the step.
std::vector<std::pair<const char*, double>> kinds_of(const StepTime& time);

// The kind of a device by which errors are told: its generation.
std::string kind_of(const hardware::Cluster& cluster);
// The half-width, as a logarithm, of the interval that holds 80 of 100 measured steps of these kinds
// (published::kinds_of()): of a source that the constants were fitted to, or of our own program, which they were not
// fitted to but which is known in full. Programs of others have a width of their own (published/calibration.h).
double half_width(const std::vector<std::string>& kinds, bool known_source);

Json to_json(const StepTime& time);  // seconds by kind

}  // namespace tutti::simulate
