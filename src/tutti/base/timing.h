// base/timing.h: clocks, and the time of a call as the median of repeated runs.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace tutti {

struct Timing {
    double median = 0, min = 0, max = 0;  // seconds of one call
    int runs = 0;                         // timed runs
};

// Of one run or more. The median of an even number is the mean of the two in the middle.
Timing timing_of(std::vector<double> seconds);

struct TimingLimits {
    double seconds = 1;  // for all runs together, including the warm-up
    int min_runs = 3;    // even if these take longer
    int max_runs = 50;
};

// Warms up by two calls, then runs until the time is spent. A run has several calls if one is too short for the clock.
// `finish`, called once per run, waits for work that `call` has only started.
Timing time_calls(
    const TimingLimits& limits, const std::function<void()>& call, const std::function<void()>& finish = [] {});

double seconds_now();  // of the steady clock
double unix_time();    // of the system clock, in seconds

std::string utc_text(double unix_time);  // "2026-11-27 13:05:00 UTC"

}  // namespace tutti
