// train/step_metrics.h: the figures of a logged step, as metrics.jsonl, event files and the console show them, and what
// the ranks have sent and waited and needed since the last line of the log.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/engine/step.h"
#include "tutti/parallel/groups.h"
#include "tutti/report/run_history.h"

namespace tutti::train {

// One line of metrics.jsonl (design.md, section 5). Numbers read back to the same bits.
struct StepMetrics {
    int64_t step = 0;
    int64_t tokens = 0;  // since the run began
    engine::StepResult result;
    double step_ms = 0;       // mean per step since the previous line
    double tokens_per_s = 0;  // positions computed, with and without a target; mfu and hfu are of these
    double mfu = 0, hfu = 0;  // of the peak measured at the start (device/cpu/peak.h), causal half
    int64_t mem_peak_bytes = 0;
    // Communication of the first rank per step since the previous line, by group; bytes are those sent over links.
    struct Comm {
        std::string group;
        double operations = 0, bytes = 0, wait_ms = 0;
    };
    std::vector<Comm> comm;
    int64_t comm_bytes() const {  // of all groups
        double sum = 0;
        for (const Comm& group : comm) sum += group.bytes;
        return std::llround(sum);
    }
    // Share of the schedule's time in which the busiest rank of a pipeline waits for other stages, since the previous
    // line; 0 without a pipeline.
    double bubble = 0;
    int64_t skipped = 0;  // in the run so far
    int64_t stage = 0;    // from 1; 0: the run has none
    bool scaled = false;  // gradients have a loss scale other than 1, or one that changes
    std::optional<double> eval_loss;
    std::vector<report::RankFigures> ranks;  // since the previous line
    report::TimeSpent spent;                 // of the run so far
};

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
