// base/awake_time.h: how long a wait has taken, without the time in which the whole process was stopped.
#pragma once

#include <algorithm>
#include <chrono>

namespace tutti {

// A batch system that suspends a job, Ctrl-Z, or a paused container stops the awaited processes as well: what passes
// meanwhile is no delay of theirs. The waiting thread looks at the clock by calling passed() more than four times in
// its time limit; a longer time between two calls was a stop, and counts as a quarter of the limit.
class AwakeTime {
  public:
    using Clock = std::chrono::steady_clock;

    explicit AwakeTime(double limit_s, Clock::time_point begin = Clock::now())
        : longest_s_(limit_s / 4), looked_(begin) {}

    // In seconds.
    double passed(Clock::time_point now = Clock::now()) {
        passed_s_ += std::min(std::chrono::duration<double>(now - looked_).count(), longest_s_);
        looked_ = now;
        return passed_s_;
    }

  private:
    double longest_s_, passed_s_ = 0;
    Clock::time_point looked_;
};

}  // namespace tutti
