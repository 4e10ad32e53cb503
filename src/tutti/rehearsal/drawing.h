// rehearsal/drawing.h: pictures of layouts and of rehearsed memory, each an SVG file of its own, from nothing but the
// objects: what is drawn is what runs.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tutti/base/purpose.h"
#include "tutti/rehearsal/layout.h"

namespace tutti::rehearsal {

// The grid of ranks, one colour per rank, and below it every grid of the layout with its rectangles in the colour of
// the first rank that has them, named by all ranks. Left out are tensors of one dim and parts of which nothing is
// shared out. UsageError for more than kMostDrawn ranks.
inline constexpr int kMostDrawn = 32;
std::string draw_svg(const Layout& layout);

// A bar for each label, of bytes by purpose.
std::string draw_memory(const std::string& title, const std::vector<std::pair<std::string, MemoryByPurpose>>& bars);

}  // namespace tutti::rehearsal
