// rehearsal/drawing.h: pictures of layouts and of rehearsed memory as SVG documents, drawn from the objects that run.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tutti/base/purpose.h"
#include "tutti/rehearsal/layout.h"
#include "tutti/rehearsal/program.h"

namespace tutti::rehearsal {

// The grid of ranks, one colour per rank, and below it every grid of the layout. A rectangle has the colour of its
// first rank and the numbers of all its ranks. Tensors of one dim and parts that no ranks divide are left out.
// UsageError for more than kMostDrawn ranks.
inline constexpr int kMostDrawn = 32;
std::string draw_svg(const Layout& layout);

// A bar for each label, of bytes by purpose.
std::string draw_memory(const std::string& title, const std::vector<std::pair<std::string, MemoryByPurpose>>& bars);

// The memory in use over the step, by purpose, from one pass over a unit to the next. `capacity`: of the machine, as a
// line; 0: none.
std::string draw_memory_over_step(const std::string& title, const Program& program, int64_t capacity);

}  // namespace tutti::rehearsal
