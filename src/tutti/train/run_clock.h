// train/run_clock.h: what the time of a run is spent on, over all its starts (report/time_spent.h): goes on where the
// newest line of the log, or run.json, has left off.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "tutti/report/time_spent.h"

namespace tutti::train {

// Where the state of the next step comes from: a checkpoint, if any; a copy in memory; the stage before, of this start.
enum class From { disk, memory, stage };

class RunClock {
  public:
    // `out`: the run directory, before lines of steps that are done again are dropped from its log; "": of a rank that
    // keeps no log. `step` and `trained`: of the resumed state, finished steps and seconds in them. The next step
    // begins now; this start, or its stage, began at `began`. Files of versions without times, or damaged ones, count
    // as none.
    RunClock(const std::string& out, int64_t step, double trained, std::chrono::steady_clock::time_point began,
             From from = From::disk);

    void saved(double seconds) { spent_.saving += seconds; }
    report::TimeSpent spent(double trained) const;  // until now; `trained`: seconds in steps that count

  private:
    report::TimeSpent spent_;  // but trained, and what this start has spent on other things
    double trained_before_, saving_before_;
    std::chrono::steady_clock::time_point first_step_ = std::chrono::steady_clock::now();
};

}  // namespace tutti::train
