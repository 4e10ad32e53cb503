// base/awake_time.h: the duration of a wait, without the time in which the whole process was stopped.
#pragma once

#include <algorithm>
#include <chrono>

namespace tutti {

// A batch system that suspends a job, Ctrl-Z, or a paused container stops the awaited processes too, so that time must
// not count as their delay. The waiting thread calls passed() more than four times within its time limit; a longer time
// between two calls is taken for a stop, and counts as a quarter of the limit.
class AwakeTime {
  public:
    using Clock = std::chrono::steady_clock;

    explicit AwakeTime(double limit_s, Clock::time_point begin = Clock::now())
        : longest_s_(limit_s / 4), last_call_(begin) {}

    // Seconds since `begin`.
    double passed(Clock::time_point now = Clock::now()) {
        passed_s_ += std::min(std::chrono::duration<double>(now - last_call_).count(), longest_s_);
        last_call_ = now;
        return passed_s_;
    }

  private:
    double longest_s_, passed_s_ = 0;
    Clock::time_point last_call_;
};

}  // namespace tutti
