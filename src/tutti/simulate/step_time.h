// simulate/step_time.h: the time of a step by closed formulas, a millionth of a second of work each: for searches and
// for runs of other systems. timeline.h has the slower and finer answer for runs of this one.
#pragma once

#include "tutti/hardware/cluster.h"
#include "tutti/simulate/constants.h"
#include "tutti/simulate/job.h"

namespace tutti::simulate {

// Seconds of a step by kind; they add up to the step.
struct StepTime {
    double products = 0, attention = 0, elementwise = 0, recompute = 0, optimizer = 0;
    double host = 0;                                // the device waits for launches
    double tp = 0, cp = 0, ep = 0, pp = 0, dp = 0;  // exposed communication
    double bubble = 0;                              // of the pipeline
    double other = 0;                               // fixed costs, stragglers, imbalance
    double tp_hidden = 0, dp_hidden = 0;            // not part of the sum
    double total() const {
        return products + attention + elementwise + recompute + optimizer + host + tp + cp + ep + pp + dp + bubble +
               other;
    }
};

// A layout that has no layout_problem().
StepTime step_time(const Job& job, const hardware::Cluster& cluster, const Constants& constants);

}  // namespace tutti::simulate
