// planner/request.h: the request for a plan: a run without a layout, and machines.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "tutti/hardware/cluster.h"
#include "tutti/simulate/physics.h"
#include "tutti/spec/run_spec.h"

namespace tutti::planner {

// What a search leaves out or holds fixed. An empty list allows all values of its axis.
struct Limits {
    std::vector<int> tp, cp, pp, ep, etp, virtual_stages, zero, micro_batch, dp_replicate;
    std::vector<int> dp;  // all data-parallel ranks
    std::vector<std::string> schedules, recompute;
    bool offload = true;
    bool plain_context = false;  // one method for all ranks of cp

    template <class T, class U>
    static bool in(const std::vector<T>& allowed, const U& value) {
        return allowed.empty() || std::find(allowed.begin(), allowed.end(), value) != allowed.end();
    }
    bool allow(const spec::RunSpec& run) const;
};
// Leaves out what a list of words names: "offload,cp,zb-v". UsageError for other words, with the nearest.
void leave_out(Limits& limits, const std::string& words);
// Fixes what a layout names, in the words of describe_layout(): "tp 8 pp 16 interleaved x 8 ZeRO-1". UsageError.
void hold(Limits& limits, const std::string& layout);

struct Request {
    spec::RunSpec
        run;  // what is trained, and how; [parallel], [recompute], [offload] and micro_batch are what a plan chooses
    hardware::Cluster cluster;
    int gpus = 1;
    std::vector<double> expert_loads = {};  // of each expert, in any unit; {}: the usual imbalance
    simulate::Physics constants = {};       // of the site
    Limits limits = {};
};

// A run of the model with the defaults of all else.
Request request_for(const spec::ModelSpec& model, const hardware::Cluster& cluster, int gpus, int64_t global_batch,
                    int64_t seq_len);

// UsageError for the family mlp, and a run that no layout makes legal, whatever the cluster.
void check_run(const Request& request);
// The same, and UsageError for a cluster that lacks the precision.
void check_request(const Request& request);

}  // namespace tutti::planner
