// planner/search.h: the fastest layouts that run and fit, priced by probes of the real engine (price.h).
//
// The space: tp x (cp, its method) x pp x (schedule, virtual stages) x ep x etp x micro batch x recompute x
// (dp_replicate, dp_shard) x ZeRO x offload of optimizer, weights and activations. Probes are taken best first: what
// changes a layer (tp, cp, ep, etp, micro batch, recompute, offload of activations, a split backward) is a node, and no
// layout of a node is faster than its layers alone, on all devices. More tensor or context parallelism, recompute and
// offload make the layers no faster, so a node that is too slow ends its branch. Recompute and offload of activations
// are tried only where memory is short.
#pragma once

#include <cstdint>
#include <vector>

#include "tutti/planner/request.h"
#include "tutti/rehearsal/target.h"

namespace tutti::planner {

struct Candidate {
    spec::RunSpec run;              // with dp_shard >= 1
    double seconds = 0, bytes = 0;  // of a step, of the fullest rank
};

// Numbers of layouts: in the space; of nodes that were not opened, because their layers alone are too slow or because
// they break a rule; of opened ones dropped by the rules, by their memory, by their passes without data parallelism;
// estimated. all = unopened + rules + memory + passes + estimated.
struct SearchCounts {
    int64_t all = 0, unopened = 0, rules = 0, memory = 0, passes = 0, estimated = 0;
    int64_t priced = 0, probes = 0;  // of the estimated ones: over the whole timeline; probes rehearsed
    double seconds = 0;              // of the search
};

struct SearchResult {
    std::vector<Candidate> best;  // fastest first
    // No other layout is faster with less memory, to 1/128 of the memory. Fastest first.
    std::vector<Candidate> front;
    SearchCounts counts;
    // Of the smallest layout that the rules allow, as it was priced, or where none was priced as it was estimated.
    double least_bytes = 0;
    bool host_is_short = false;  // a layout fits the device, and what it offloads does not fit the host
};

// Requires check_request(). `target`: the machine that is rehearsed, with its capacity. SizeError where a rank has more
// values than a kernel takes in all layouts.
SearchResult search(const Request& request, const rehearsal::Target& target);

}  // namespace tutti::planner
