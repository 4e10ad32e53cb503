// planner/search.h: the fastest layouts that run and fit. Closed forms (simulate/) pass over the whole space and
// propose the best of every part of it; probes of the real engine (price.h) price what is proposed.
//
// The space: tp x sequence parallel x (cp, its method) x pp x (schedule, virtual stages) x ep x etp x micro batch x
// recompute x (dp_replicate, dp_shard) x ZeRO x offload of optimizer, weights and activations. Four gates drop layouts
// that cannot be among the best: the engine's rules; the memory; a bound of the time from FLOPs; the time without data
// parallelism and offload. No bound exceeds the price, so the result is that of pricing every layout.
#pragma once

#include <cstdint>
#include <vector>

#include "tutti/planner/request.h"
#include "tutti/rehearsal/target.h"
#include "tutti/simulate/job.h"

namespace tutti::planner {

struct Candidate {
    simulate::Job job;
    double seconds = 0, bytes = 0;  // of a step, of the fullest rank
    int reductions = 1;             // [parallel] reductions: 2 where the step is faster so
};

// Numbers of layouts: in the space, dropped by each gate, priced. all = rules + memory + flops + compute + priced.
struct Gates {
    int64_t all = 0, rules = 0, memory = 0, flops = 0, compute = 0, priced = 0;
    int64_t visited = 0;                // decisions, each on one layout or on a group
    double seconds = 0;                 // of the search
    int64_t by_probes = 0, probes = 0;  // layouts priced by probes, and probes rehearsed
};

struct Found {
    // Fastest first. Of layouts that differ only in data parallelism and offload: the fastest for each ZeRO stage, and
    // the fastest with memory to spare.
    std::vector<Candidate> best;
    // No other layout is faster with less memory, to 1/128 of the memory. Fastest first.
    std::vector<Candidate> front;
    Gates gates;
    double least_bytes = 0;  // of a layout that the rules allow
};

inline constexpr size_t kKept = 1000;  // many differ little

// By closed forms alone. Requires check_request(). `keep`: number of the best layouts. `memory`: bytes of a rank by the
// closed form; 0: those of the device.
Found propose(const Request& request, size_t keep = kKept, double memory = 0);

// The layouts that are fastest by probes on `target`, among those that are proposed for each (tp, cp, pp, ep, etp),
// micro batch, recompute, schedule, ZeRO stage and offload of activations, all of the best few grids.
Found search(const Request& request, const rehearsal::Target& target);

}  // namespace tutti::planner
