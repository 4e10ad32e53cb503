// schedule/reorder.h: an order made from another one by simulation: a rank whose next action cannot start yet takes one
// of the few behind it that can. So the warm-up and the cool-down of a repeated block close up within a limit of
// memory, as Qi et al., arXiv 2405.15362, do with V-Half.
#pragma once

#include <optional>

#include "tutti/schedule/greedy.h"

namespace tutti::schedule {

struct ReorderRules {
    MemoryLimit memory;
    int ahead = 1;           // an I or a W is taken from among so many actions, 1: the next one only
    int forwards_ahead = 1;  // the same of an F
    enum class Weights { in_order, behind_after_last_forward, behind } weights = Weights::in_order;  // behind: F and I
    bool keep_places = false;  // an F leaves a place for each later chunk of the rank, which frees what the F holds
};

// `base`: F, I and W apart, one replica. The microbatches of each chunk keep their order in F, I and W. nullopt when
// the rules lead into a deadlock, or a backward of `base` is whole.
std::optional<Schedule> reorder(const Schedule& base, const Times<int64_t>& times, const ReorderRules& rules);

}  // namespace tutti::schedule
