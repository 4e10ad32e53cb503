// schedule/csv.h: schedules as text, in the format of torch.distributed.pipelining: one row per rank, one cell per
// action; blank cells are idle time and are skipped. Both forms are read and written: compute only, and with messages
// (compute_comms). A second replica, which PyTorch does not have, is marked by an apostrophe: "3'F4".
#pragma once

#include <string>
#include <string_view>

#include "tutti/schedule/schedule.h"

namespace tutti::schedule {

// "2F0" -> forward of stage 2, microbatch 0. UsageError with the expected form when the text is not an action.
Action parse_action(std::string_view text);

// The placement follows from the actions: a chunk belongs to the rank that computes with the chunk. `name` is for
// messages. UsageError, naming row and cell, for text that is no schedule; validate() checks the order.
Schedule parse_csv(std::string_view text, const std::string& name);
Schedule read_csv(const std::string& path);

// All actions in their order. For the compute-only form pass a schedule without messages, or compute_only() of one.
std::string to_csv(const Schedule& schedule);

}  // namespace tutti::schedule
