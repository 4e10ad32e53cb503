// schedule/lowering.h: passes that turn a compute-only schedule into the programs that ranks execute. Each pass returns
// the schedule with more actions and keeps the order of the existing ones. lower() applies all passes in order.
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

// reduce_gradient after the last W or B of each chunk.
Schedule insert_gradient_reduction(const Schedule& schedule);

// For schedules with several replicas: replica_reduce of each chunk at the end of the program of each rank that holds a
// replica of the chunk, in ascending order of stages, so that the two ranks of a stage meet. Others are unchanged.
Schedule insert_replica_reduction(const Schedule& schedule);

// Assigns memory slots: to each forward's saved tensors, until the W; to each received tensor, until the action that
// uses the tensor has run. The first free slot is taken, so that a rank needs as many slots as live at once.
Schedule assign_slots(const Schedule& schedule);

struct LowerOptions {
    bool fsdp = false;
    int max_active = 3;
    bool gradient_reduction = true;
};
Schedule lower(const Schedule& schedule, const LowerOptions& options = {});

}  // namespace tutti::schedule
