// schedule/greedy.h: an order made by simulation: whenever a rank is free, rules choose what the rank does next among
// what can start. In the manner of the heuristic of Qi et al., arXiv 2401.10241, section 3.1.
#pragma once

#include <optional>

#include "tutti/schedule/timeline.h"

namespace tutti::schedule {

enum class Prefer { backward, forward, alternate };  // when both can start

// What may live on a rank at once, in chunks: a chunk counts 1 from its F to its I, then `after_input` until its W. The
// papers' M_W / M_B; 1 is what must be assumed of a framework that frees nothing at I.
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
    // A W fills idle time, unless a message would arrive before patience / 2 of the W.
    int patience = 0;
    bool deep = true;  // the later of two chunks goes first
};

// F, I and W apart, one replica. nullopt when the rules lead into a deadlock.
std::optional<Schedule> greedy(const Placement& placement, int microbatches, const Times<int64_t>& times,
                               const GreedyRules& rules);

}  // namespace tutti::schedule
