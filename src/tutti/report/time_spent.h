// report/time_spent.h: the seconds of a run by what they were spent on, over all its starts, and the goodput: the share
// that trained. Written by the trainer in each line of metrics.jsonl.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "tutti/base/json.h"

namespace tutti::report {

struct TimeSpent {
    double trained = 0;     // in steps that count
    double lost = 0;        // in steps that were done again, because the run died before a checkpoint of them
    double saving = 0;      // training stood still for checkpoints
    double restarting = 0;  // from the last line before a death, or from a start after a stop, to the next step
    double other = 0;       // the first start, changes of stage, evaluations, the log
    int64_t lost_steps = 0, deaths = 0, stops = 0;
    int64_t from_memory = 0;  // starts that continued from a copy in memory; the others from disk

    double total() const { return trained + lost + saving + restarting + other; }
    // Nothing before the first step.
    std::optional<double> goodput() const { return trained > 0 ? std::optional(trained / total()) : std::nullopt; }
    bool operator==(const TimeSpent&) const = default;
};

// The parts by their keys in metrics.jsonl.
inline constexpr std::pair<const char*, double TimeSpent::*> kTimes[] = {{"trained", &TimeSpent::trained},
                                                                         {"lost", &TimeSpent::lost},
                                                                         {"saving", &TimeSpent::saving},
                                                                         {"restarting", &TimeSpent::restarting},
                                                                         {"other", &TimeSpent::other}};
inline constexpr std::pair<const char*, int64_t TimeSpent::*> kCounts[] = {{"lost_steps", &TimeSpent::lost_steps},
                                                                           {"deaths", &TimeSpent::deaths},
                                                                           {"stops", &TimeSpent::stops},
                                                                           {"from_memory", &TimeSpent::from_memory}};

Json to_json(const TimeSpent& spent);  // one object with all keys, in whole microseconds
// JsonError or DataError where a key is missing or no number. Versions before copies in memory wrote no from_memory.
TimeSpent time_spent_from(const Json& object);

// What the expected share of trained time follows from. Seconds.
struct GoodputTerms {
    double between_failures = 0;                // M, of the whole job; infinite: none
    double restart = 0;                         // D + R: from a failure to the next step
    double disk_every = 0, disk_stall = 0;      // T_d between saves to disk, C_d: training stands still for one
    double memory_every = 0, memory_stall = 0;  // k t between copies in memory (0: none), c
    double memory_lag = 0;                      // w: from the state of a copy until the copy is whole
    double disk_share = 0, disk_restart = 0;    // p of failures need the disk in spite of copies, R_d more to load
};
// (1 - c / (k t) - C_d / T_d) (1 - (D + R + (1 - p) (k t / 2 + w) + p (T_d / 2 + R_d)) / M): half an interval is lost
// on average, of copies or where the disk is needed of checkpoints. Intervals have their pauses in them. Without copies
// in memory the interval is T_d. To first order in 1 / M; never below 0. Daly 2006 is the exact form for one kind of
// checkpoint (planner/scaling.h).
double expected_goodput(const GoodputTerms& terms);

}  // namespace tutti::report
