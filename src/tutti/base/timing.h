// base/timing.h: how long something takes, with its noise. Every benchmark reports the median of repeated runs.
#pragma once

#include <functional>

namespace tutti {

struct Timing {
    double median = 0, min = 0, max = 0;  // seconds of one call
    int runs = 0;                         // that were timed
};

struct Patience {
    double seconds = 1;  // for all runs together, the warm-up included
    int min_runs = 3;    // even when that takes longer
    int max_runs = 50;
};

// Two calls to warm up, then runs until patience ends. Calls too short for the clock are timed several to a run. Calls
// that return before their work is done are given a `finish` that waits for it, once in a run.
Timing time_calls(
    const Patience& patience, const std::function<void()>& call, const std::function<void()>& finish = [] {});

double seconds_now();  // of the steady clock

}  // namespace tutti
