// tests/cuda/emulation/race_tsan.h: what tests ask the detector.
#pragma once

#include <compare>
#include <cstdint>
#include <set>
#include <string>

#include "tests/cuda/emulation/race.h"

namespace tutti::emulation::race {

int64_t races();  // reported so far

// A line of a kernel that orders threads.
struct Line {
    std::string file;  // "norm.cu"
    unsigned line = 0;
    auto operator<=>(const Line&) const = default;
};
std::set<Line> lines();  // seen since the last call
// Threads are no longer ordered there, though they still run in that order, as if the line were missing, and kernels
// end with the first report. Empty: all lines order threads.
void forget(const Line& line);
// Whether reports appear on standard error.
void show(bool reports);

}  // namespace tutti::emulation::race
