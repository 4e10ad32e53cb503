// train/console.h: the output of a run for people: the plan card, one aligned line per logged step, and warnings. A
// terminal has a progress bar with the remaining time; elsewhere the line of a step also has the clock, the time since
// the start, the remaining time and the peak of memory on the first rank's device.
#pragma once

#include <chrono>
#include <iosfwd>
#include <string>

#include "tutti/train/step_metrics.h"

namespace tutti::train {

class Console {
  public:
    // `out` null: no output. `warnings` null: warnings go to `out`.
    Console(std::ostream* out, bool terminal, int64_t steps, std::ostream* warnings = nullptr)
        : out_(out), warnings_(warnings ? warnings : out), terminal_(terminal), steps_(steps) {}
    ~Console() { clear_bar(); }

    void text(const std::string& lines);  // unchanged, with a line feed
    void warn(const std::string& message);
    void step(const StepMetrics& metrics);
    // A line in the bar's place, on a terminal only.
    void status(const std::string& line);
    // Redraws the bar; `seconds_per_step` is a mean of recent steps.
    void progress(int64_t step, double seconds_per_step);
    void clear_bar();

  private:
    std::ostream* out_;
    std::ostream* warnings_;
    bool terminal_;
    int64_t steps_;
    bool bar_drawn_ = false;
    std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace tutti::train
