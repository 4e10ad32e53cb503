// published/calibration.h: the numbers of Physics from runs whose time was measured, and how far predictions are from
// runs that took no part. An error is |ln(predicted / measured)|.
#pragma once

#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

#include "tutti/published/run.h"
#include "tutti/simulate/physics.h"

namespace tutti::published {

// The fitted numbers of physics_fields() that minimise the errors of `runs`, held near `start`: families weigh alike,
// far rows count less than their square. Runs without a measurement, with a problem, or with estimated fields take no
// part.
simulate::Physics fit(const std::vector<const PublishedRun*>& runs, const simulate::Physics& start);

// Seconds of each run by constants that were fitted without the run's group, which `group_of` names: its house. 0 for a
// run that takes no part.
std::vector<double> leave_out(const std::vector<PublishedRun>& runs,
                              const std::function<std::string(const PublishedRun&)>& group_of,
                              const simulate::Physics& start);

// One constant for each device and precision, which fits these rows best: time = FLOPs with full attention and
// recomputation, through the bubble, over the constant.
std::vector<double> naive(const std::vector<PublishedRun>& runs);

struct GroupError {
    std::string name;
    int rows = 0;
    double mean = 0, bias = 0, largest = 0;  // largest: with its sign
    int inside = 0;                          // of the rows: those inside their intervals
};
// Whether the constants were fitted to a run's house.
enum class Source { as_fitted, left_out };
// Of runs that count and have a prediction; `names_of`: the groups that a run belongs to.
std::vector<GroupError> errors_of(const std::vector<PublishedRun>& runs, const std::vector<double>& predicted,
                                  const std::function<std::vector<std::string>(const PublishedRun&)>& names_of,
                                  Source source = Source::as_fitted);
// The mean error of families; of houses, each the mean of its families.
struct Means {
    double families = 0, houses = 0;
};
Means means_of(const std::vector<PublishedRun>& runs, const std::vector<double>& predicted);

// The half-width, as a logarithm, of the interval that holds 80 of 100 such runs: of the run's kinds where the
// constants were fitted to its family; else at least that of an unseen source.
double half_width(const PublishedRun& run, Source source = Source::as_fitted);

}  // namespace tutti::published
