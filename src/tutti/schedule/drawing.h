// schedule/drawing.h: pictures of a timeline, from nothing but its list of (start, end, action): what is drawn is what
// was simulated.
#pragma once

#include <string>

#include "tutti/schedule/timeline.h"

namespace tutti::schedule {

// One line per rank, `columns` wide at most: a letter for each slice of time by the action that covers its middle (F,
// B, I, W; in lower case on the second chunk and later ones and on replica 1; # overlap), a dot where the rank is idle.
std::string draw_text(const Timeline<double>& timeline, const Placement& placement, int columns);

// A file of its own. One row per rank, time to the right; colour by operation, lighter on the second chunk and later
// ones and on replica 1, an overlap as two halves in a black frame, with a legend of the operations that occur; each
// box says its action and times when pointed at.
std::string draw_svg(const Timeline<double>& timeline, const Schedule& schedule);

}  // namespace tutti::schedule
