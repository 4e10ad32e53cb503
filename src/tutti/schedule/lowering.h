// schedule/lowering.h: passes that turn a compute-only schedule into the programs that ranks execute. Each pass returns
// the schedule with more actions and keeps the order of the existing ones.
#pragma once

#include "tutti/schedule/schedule.h"

namespace tutti::schedule {

// Send and receive for each edge between stages on different ranks; nothing for edges inside a rank. The algorithm is
// that of torch.distributed.pipelining: a send is appended right after its producer, and at that moment the receive is
// appended to the program of the consumer's rank. All programs are therefore projections of one order in which each
// send stands next to its receive, so that even blocking sends make progress. Error when the schedule deadlocks.
Schedule insert_messages(const Schedule& schedule);
Schedule compute_only(const Schedule& schedule);

// FSDP: unshard before a chunk is used, reshard when it is not among the next `max_active` distinct chunks of its rank
// (as in torch.distributed.pipelining). UsageError for 1 where the schedule overlaps: an overlap uses two chunks.
Schedule insert_unshard(const Schedule& schedule, int max_active = 3);

}  // namespace tutti::schedule
