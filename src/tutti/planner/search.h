// planner/search.h: the fastest layouts that run and fit, by closed forms (simulate/).
//
// The space: tp x sequence parallel x (cp, its method) x pp x (schedule, virtual stages) x ep x etp x micro batch x
// recompute x (dp_replicate, dp_shard) x ZeRO x offload of optimizer, weights and activations. Four gates drop layouts
// that cannot be among the best: the engine's rules; the memory; a bound of the time from FLOPs; the time without data
// parallelism and offload. No bound exceeds the price, so the result is that of pricing every layout.
#pragma once

#include <cstdint>
#include <vector>

#include "tutti/planner/request.h"
#include "tutti/simulate/job.h"

namespace tutti::planner {

struct Candidate {
    simulate::Job job;
    double seconds = 0, bytes = 0;  // closed forms: of a step, of the fullest rank
};

// Numbers of layouts: in the space, dropped by each gate, priced. all = rules + memory + flops + compute + priced.
struct Gates {
    int64_t all = 0, rules = 0, memory = 0, flops = 0, compute = 0, priced = 0;
    int64_t visited = 0;  // decisions, each on one layout or on a group
    double seconds = 0;   // of the search
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

// Requires check_request(). `keep`: number of the best layouts. `memory`: bytes of a rank by the closed form; 0: those
// of the device.
Found search(const Request& request, size_t keep = kKept, double memory = 0);

}  // namespace tutti::planner
