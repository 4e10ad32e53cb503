// planner/scaling.h: throughput and cost of the best layout at each number of devices, with failures and checkpoints.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tutti/base/json.h"
#include "tutti/planner/request.h"
#include "tutti/planner/search.h"
#include "tutti/report/time_spent.h"

namespace tutti::planner {

// --- Failures ---

struct ScalingOptions;
// Of a job of `ranks` devices that saves `state` bytes by all of its nodes together; `o` has their storage and the time
// of a restart. `memory_every`: seconds between copies in memory; 0: none. `beside`: written while training goes on
// (checkpoint.async), so that the pause is that of taking the state, and what one copy needs beyond the next.
// `disk_every` is open.
report::GoodputTerms failures_of(const hardware::Cluster& cluster, int ranks, double state, const ScalingOptions& o,
                                 double memory_every = 0, bool beside = true);
// Young 1974, Daly 2006: the interval between checkpoints that loses least, sqrt(2 C MTBF), where the failures that
// need the disk count.
double checkpoint_interval(const report::GoodputTerms& terms);
// Bytes of a run's checkpoint: master weights and the optimizer's state.
double checkpoint_bytes(const spec::RunSpec& run);
// Share of the time that is training, with a checkpoint each `interval` seconds of training: the interval over its
// expected duration, MTBF e^(R / MTBF) (e^((interval + C) / MTBF) - 1) (Daly 2006, eq. 13, in which a restart may fail
// too). With copies in memory report::expected_goodput, whose disk restart reads what a checkpoint writes; memory_every
// counts training as `interval` does, without the pauses.
double goodput(report::GoodputTerms terms, double interval);

// --- Scaling ---

struct ScalingOptions {
    int first = 8, last = 65536;    // devices, doubled from one to the next
    double storage_per_node = 1e9;  // bytes/s that a node writes to storage
    double memory_per_rank = 1e9;   // bytes/s that a rank copies into memory with digests: one core (bench/results)
    double state_per_rank = 4e9;    // bytes/s at which a rank takes its state for that (bench/results)
    double disk_share = 0.05;       // of failures lose a host and the holder of its copy; all of them on one node
    double restart_s = 600;         // MegaScale: detection and diagnosis below 10 minutes
    std::optional<double> price;    // dollars of a device and hour; none: the cluster's
};

struct ScalingRow {
    int gpus = 0;
    std::string problem;  // the reason where there is no layout, else ""
    Candidate best;       // by probes
    double tokens_per_s = 0, mfu = 0;
    double efficiency = 0;          // tokens/s of a device, as a share of the first row's
    report::GoodputTerms failures;  // with the interval
    double goodput = 0;
    double useful_tokens_per_s() const { return tokens_per_s * goodput; }
    double dollars_per_billion_tokens = 0;  // of useful ones; 0: the price is not known
};

// Strong scaling: the global batch of the request at every size, because the training recipe fixes the batch.
std::vector<ScalingRow> scale(const Request& request, const ScalingOptions& options);

std::string render(const Request& request, const ScalingOptions& options, const std::vector<ScalingRow>& rows);
Json to_json(const std::vector<ScalingRow>& rows);

}  // namespace tutti::planner
