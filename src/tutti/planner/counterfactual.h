// planner/counterfactual.h: one given layout beside another: its rehearsed time and memory, the keys in which the two
// differ, and the one change of the given layout that helps most.
#pragma once

#include <string>
#include <vector>

#include "tutti/planner/finalists.h"
#include "tutti/planner/request.h"
#include "tutti/spec/run_spec.h"

namespace tutti::planner {

// The keys of parallelism, micro batch, recompute and offload in which `to` differs: "parallel.tp=8", for --set.
std::vector<std::string> differences(const spec::RunSpec& from, const spec::RunSpec& to);

struct Change {
    std::string what;              // "tp 8 -> 4"
    std::vector<std::string> set;  // for --set
    RehearsedRun result;
};
// Single changes of a run that run and fit, fastest first: each key of `towards` that differs, another ZeRO stage,
// recompute, micro batch or schedule, more reductions in flight, half and twice the ranks of an axis.
std::vector<Change> changes(const Request& request, const RehearsedRun& from, const spec::RunSpec& towards);

// "my layout: 1.20 s, +12 % ..." with what differs and the change that helps most.
std::string compare(const std::string& name, const RehearsedRun& mine, const RehearsedRun& best,
                    const std::vector<Change>& changes);
Json to_json(const RehearsedRun& mine, const RehearsedRun& best, const std::vector<Change>& changes);

}  // namespace tutti::planner
