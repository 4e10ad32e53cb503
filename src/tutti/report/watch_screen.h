// report/watch_screen.h: a watched run as lines of a terminal.
#pragma once

#include <string>
#include <vector>

#include "tutti/report/svg.h"
#include "tutti/report/watched_run.h"

namespace tutti::report {

// The run as lines for a terminal of `columns` columns: state, progress, the newest numbers, the curve of the loss.
std::string render(const WatchedRun& run, size_t columns, double now);
// A line of the log on one line: "step 40/400   loss 2.1000   ...".
std::string log_line(const WatchedRun& run, const LoggedStep& step);

// `points` as a picture of braille characters (2 x 4 dots each) in `rows` lines of `columns` columns, with the largest
// and the smallest value beside it. "" without two finite points.
std::string braille_curve(const std::vector<Point>& points, size_t columns, size_t rows);

}  // namespace tutti::report
