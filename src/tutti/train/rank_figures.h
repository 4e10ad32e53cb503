// train/rank_figures.h: what the ranks have sent and waited and needed since the last line of the log, for that line.
#pragma once

#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/parallel/groups.h"
#include "tutti/report/run_history.h"
#include "tutti/train/step_metrics.h"

namespace tutti::train {

// Means per step of this rank, by group.
std::vector<StepMetrics::Comm> comm_per_step(const std::vector<parallel::GroupUsage>& before,
                                             const std::vector<parallel::GroupUsage>& now, int64_t steps);

// The waits and peaks of all ranks, each of which gives its own; nothing of one rank. Of a run of up to
// report::kMostRanks all, by rank; of a larger one the ranks with the shortest, the middle and the longest wait. The
// same on every rank. Collective over `ranks`.
std::vector<report::RankFigures> gather_figures(comm::Communicator& ranks, int64_t mem_peak_bytes,
                                                const std::vector<StepMetrics::Comm>& comm);
// The choice among the figures of all ranks.
std::vector<report::RankFigures> chosen_figures(std::vector<report::RankFigures> all);

}  // namespace tutti::train
