// planner/rules.h: the layouts of a search: those that keep the rules of spec/rules.h, less those of the planner's own
// rules: stages must be nearly even, a schedule must have the microbatches that the formula of its bubble needs, and
// only some parts can be offloaded.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/planner/request.h"
#include "tutti/simulate/job.h"
#include "tutti/spec/rules.h"

namespace tutti::planner {

// A schedule of the search. Left out: naive, gpipe, looped-bfs and zb-h2, which another schedule beats at equal memory
// or time in the closed forms; chimera and dualpipe, which hold every weight twice; interleaved-zb and auto, whose
// bubbles have no formula.
struct Schedule {
    const char* name;
    int chunks;                    // per rank; 0: free, from 2 on
    double microbatches_per_rank;  // at least, as a multiple of pp
    bool whole_rounds;             // microbatches in multiples of pp
};
std::span<const Schedule> schedules();

// How a sequence's ranks exchange keys: `ulysses` of cp exchange heads, cp / ulysses pass keys on or gather them.
struct ContextMethod {
    simulate::Context method = simulate::Context::ring;
    int ulysses = 1;  // as Job::cp_ulysses
    void set(spec::ParallelSpec& parallel) const;
};
std::vector<ContextMethod> context_methods(int cp);  // of one rank only the ring
// The fullest stage has at most 1/8 more layers than the mean. With two layers fewer than a multiple of the stages, the
// first and the last stage have one less, beside embedding and head (as in Llama 3).
bool stages_allowed(int64_t layers, int stages);
bool schedule_allowed(const Schedule& schedule, int pp, int64_t microbatches);

// Nothing where the bandwidth to the host is not known. Activations only where weight gradients are not deferred:
// tensors fetched for an input gradient stay until the weight gradient.
bool offload_allowed(const Request& request, std::string_view schedule, const simulate::Offload& offload);

// All rules of the engine and of the planner for one job.
bool allowed(const Request& request, const simulate::Job& job);

// The run of a job, for spec::validate() and `tutti train`.
spec::RunSpec run_of(const Request& request, const simulate::Job& job);
// A job of the request with no parallelism but data parallelism.
simulate::Job plain_job(const Request& request);

// "tp 8, pp 16 interleaved x 7, dp 128, ZeRO-1, micro batch 1, recompute none"
std::string describe_layout(const simulate::Job& job);

std::vector<int> divisors(int64_t n, int most);  // ascending

}  // namespace tutti::planner
