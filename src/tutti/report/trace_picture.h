// report/trace_picture.h: a traced or predicted step of all ranks as rows of bars along time.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tutti/base/bars.h"
#include "tutti/report/trace_read.h"

namespace tutti::report {

inline constexpr size_t kDrawnRanks = 8;

// The meaning of a span's colour (base/palette.h).
std::string meaning_of(const TracedSpan& span);

// The traced step of the median duration; null: no step was traced.
const TracedSpan* typical_step(const TracedRank& rank);

// From the first beginning of this step on a rank to the last end, in us of the trace.
std::pair<double, double> extent_of(const std::vector<TracedRank>& trace, const TracedSpan& step);

// `step`, of one of the ranks, on the first kDrawnRanks: computing, below it the rank's waits and the operations of
// each group. A step of very many spans is shown as its beginning and its end.
svg::Bars bars_of(const std::vector<TracedRank>& trace, const TracedSpan& step, const std::string& title);

}  // namespace tutti::report
