// simulate/clock.h: the time of one rank: kernels one after another, and waits for operations beside them.
#pragma once

#include <algorithm>
#include <iterator>
#include <vector>

#include "tutti/simulate/physics.h"

namespace tutti::simulate {

// Of CUDA's queue: a kernel is launched when the one so many before it has begun.
inline constexpr int kLaunchesAhead = 1024;

// Seconds since the begin of the step.
class Clock {
  public:
    double now = 0, busy = 0;

    void compute(double seconds) {
        if (intervals_.empty() || intervals_.back().end < now) intervals_.push_back({now, now, busy});
        now += seconds;
        busy += seconds;
        intervals_.back().end = now;
    }
    // Seconds of kernels so far in [begin, end).
    double computed(double begin, double end) const {
        return std::max(0.0, computed_until(end) - computed_until(begin));  // their sums round
    }
    // When a wait ends for an operation of [begin, end): kernels beside it and the operation take longer (beside()).
    double end_of_wait(double begin, double end, double contention) const {
        const double compute = computed(begin, end), seconds = end - begin;
        return std::max(end, now) + beside(compute, seconds, contention) - std::max(0.0, seconds - compute);
    }

  private:
    struct Interval {  // of kernels back to back
        double begin, end, before;
    };
    double computed_until(double when) const {
        const auto after = std::ranges::upper_bound(intervals_, when, {}, &Interval::begin);
        if (after == intervals_.begin()) return 0;
        const Interval& at = *std::prev(after);
        return at.before + std::min(when, at.end) - at.begin;
    }

    std::vector<Interval> intervals_;
};

}  // namespace tutti::simulate
