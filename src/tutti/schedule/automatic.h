// schedule/automatic.h: a search for the schedule with the shortest step for given times and a limit of memory.
#pragma once

#include "tutti/schedule/generators.h"
#include "tutti/schedule/greedy.h"
#include "tutti/schedule/timeline.h"

namespace tutti::schedule {

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
