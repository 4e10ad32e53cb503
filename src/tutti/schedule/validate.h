// schedule/validate.h: proves a schedule before anything runs: compute-only or lowered, generated or from a file. Every
// message names the action: "rank 2, action 7 (2B1): ...".
//
// For any schedule:
//  1. every microbatch has on every stage of its replica one F and either one B or one I and one W, and nothing else;
//  2. every action is on the rank that holds the chunk, and all ranks hold equally many chunks;
//  3. on a rank, F comes before I or B, and I before W; the two halves of an overlap are independent;
//  4. the programs of all ranks together reach their end: no rank waits for ever;
//  7. no rank holds the saved tensors of more chunks than the schedule's peak_bound;
//  9. the weight gradients of a chunk are added in ascending order of microbatches, if the schedule says so.
// For a lowered schedule also:
//  5. every send has its receive, between different ranks; send after producer, receive before consumer (by 4);
//  6. the programs reach their end even when each send waits for its receive, so all ranks have one order of messages;
//  8. unshard comes before each use of a chunk, reshard after.
// 10, equal work of all ranks, follows from 1 and 2.
#pragma once

#include <string>
#include <vector>

#include "tutti/schedule/schedule.h"

namespace tutti::schedule {

// The broken rules, in the order of the list above; a later rule is checked only when the earlier ones hold.
std::vector<std::string> problems_of(const Schedule& schedule);

// UsageError with the first problems.
void validate(const Schedule& schedule);

}  // namespace tutti::schedule
