// schedule/drawing.h: pictures of a timeline, drawn from the list of (start, end, action) that was simulated.
#pragma once

#include <string>

#include "tutti/schedule/timeline.h"

namespace tutti::schedule {

// One line per rank, at most `columns` wide: a letter per slice of time for the action in the middle of the slice (F,
// B, I, W; in lower case on the second and later chunks and on replica 1; # overlap), a dot where the rank is idle.
std::string draw_text(const Timeline<double>& timeline, const Placement& placement, int columns);

// A complete SVG file. One row per rank, time to the right; colour by operation, lighter on the second and later chunks
// and on replica 1; an overlap as two halves in a black frame; a legend of the operations that occur; each box has its
// action and times as a tooltip.
std::string draw_svg(const Timeline<double>& timeline, const Schedule& schedule);

}  // namespace tutti::schedule
