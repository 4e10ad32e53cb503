// rehearsal/drawing.h: pictures of layouts and of rehearsed memory, drawn from the objects that run.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tutti/base/bars.h"
#include "tutti/base/purpose.h"
#include "tutti/rehearsal/layout.h"
#include "tutti/rehearsal/program.h"

namespace tutti::rehearsal {

inline constexpr int kMostDrawn = 32;

// The ranks, one colour each, and the groups of each axis: one colour for the ranks of a group. With `per_node` the
// ranks of a node stand together, and each axis says whether its groups lie inside nodes. Of more than kMostDrawn
// ranks, which need per_node > 0, the first ranks of the first node and of the last one are drawn. As wide as a chart
// of bars, beside which it stands on a page: few ranks leave room, and do not grow.
svg::Picture draw_nodes(const mesh::Mesh& mesh, const std::vector<mesh::Axes>& axes, int per_node,
                        const std::string& title);
// The same, and below it every grid of the layout. A rectangle has the colour of its first rank and the numbers of all
// its ranks. Tensors of one dim and parts that no ranks divide are left out. UsageError for more than kMostDrawn ranks.
svg::Picture draw_layout(const Layout& layout, int per_node);

// A bar for each label, of bytes by purpose.
svg::Bars memory_bars(const std::string& title, const std::vector<std::pair<std::string, MemoryByPurpose>>& bars);

// The memory in use over the step, by purpose, from one pass over a unit to the next. `capacity`: of the machine, as a
// line; 0: none.
svg::Picture draw_memory_over_step(const std::string& title, const Program& program, int64_t capacity);

}  // namespace tutti::rehearsal
