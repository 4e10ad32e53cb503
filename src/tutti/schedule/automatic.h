// schedule/automatic.h: a search for the schedule with the shortest step for given times and a limit of memory. Orders
// are found by simulation: whenever a rank is free, rules choose the rank's next action among those that can start.
#pragma once

#include <optional>

#include "tutti/schedule/generators.h"
#include "tutti/schedule/timeline.h"

namespace tutti::schedule {

enum class Prefer { backward, forward, alternate };  // when an F and an I can start

// The chunks that may live on a rank at once: a chunk counts 1 from its F to its I, then `after_input` (the papers'
// M_W / M_B) until its W. 1 is right for a framework that frees nothing at I.
struct MemoryLimit {
    int chunks = 1;
    double after_input = 1;

    bool admits(int before_input, int after) const { return before_input + after_input * after <= chunks + 1e-9; }
};

struct GreedyRules {
    MemoryLimit memory;
    // Rank r may be ahead of its backwards by slope * (p - 1 - r) + offset forwards.
    int slope = 1, offset = 1;
    Prefer prefer = Prefer::backward;
    // A W fills idle time, unless a message would arrive within wait_halves halves of the time of the W.
    int wait_halves = 0;
    bool deep = true;  // the later of two chunks goes first
};

// An order of F, I and W for one replica, in the manner of the heuristic of Qi et al., arXiv 2401.10241, section 3.1.
// nullopt when the rules lead to a deadlock.
std::optional<Schedule> greedy(const Placement& placement, int microbatches, const Times<int64_t>& times,
                               const GreedyRules& rules);

struct ReorderRules {
    MemoryLimit memory;
    int ahead = 1;           // an I or a W is chosen among this many actions; 1: the next action only
    int forwards_ahead = 1;  // the same for an F
    enum class Weights { in_order, behind_after_last_forward, behind } weights = Weights::in_order;  // behind: F and I
    bool keep_places = false;  // an F leaves room for each later chunk of the rank, which frees the F's saved tensors
};

// A rank whose next action in `base` cannot start yet takes one of the following few that can. This closes the gaps in
// the warm-up and the cool-down of a repeated block within a limit of memory, as Qi et al., arXiv 2405.15362, do with
// V-Half. `base` has separate F, I and W and one replica; the microbatches of each chunk keep their order in F, I and
// W. nullopt when the rules lead to a deadlock, or when `base` has a B.
std::optional<Schedule> reorder(const Schedule& base, const Times<int64_t>& times, const ReorderRules& rules);

// For one copy of the model, the best of
//  - all generators with d.chunks stages per rank whose peak fits,
//  - orders found by simulation for a grid of rules (greedy()),
//  - these orders and those of the generators with their gaps closed (reorder()),
//  - small changes of the best of these.
// Best is the smallest makespan, then cost, then sum over the ranks of first start to last end. The result is never
// worse than a generator at the same limit, and always the same for the same numbers. Bidirectional schedules, which
// hold every weight twice, are not considered.
//
// `memory.chunks` 0: no limit. UsageError when the limit is below the d.chunks that one microbatch needs.
Schedule automatic(const Dimensions& d, const Times<int64_t>& times, MemoryLimit memory);

}  // namespace tutti::schedule
