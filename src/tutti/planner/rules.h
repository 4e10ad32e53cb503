// planner/rules.h: the layouts of a search: those that keep the rules of spec/rules.h, less those of the planner's own
// rules: stages must be nearly even, and only some parts can be offloaded.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/purpose.h"
#include "tutti/planner/request.h"
#include "tutti/schedule/generators.h"
#include "tutti/spec/rules.h"

namespace tutti::planner {

// The schedules of the search: all but naive; gpipe and looped-bfs, which hold more than 1f1b and interleaved for the
// same time; chimera and dualpipe, which hold every weight twice.
std::span<const schedule::Kind* const> schedules();

// How a sequence's ranks exchange keys: `ulysses` of cp exchange heads, cp / ulysses pass keys on or gather them.
struct ContextMethod {
    std::string_view name = "ring";  // [parallel] cp_method
    int64_t ulysses = 0;             // [parallel] cp_ulysses
    auto operator<=>(const ContextMethod&) const = default;
};
std::vector<ContextMethod> context_methods(int64_t cp);  // of one rank only the ring
// The fullest stage has at most 1/8 more layers than the mean. With two layers fewer than a multiple of the stages, the
// first and the last stage have one less, beside embedding and head (as in Llama 3).
bool stages_allowed(int64_t layers, int64_t stages);

// The parts whose offload the search tries. Nothing where the bandwidth to the host is not known; activations only
// where weight gradients are not deferred: tensors fetched for an input gradient stay until the weight gradient.
bool offload_allowed(const Request& request, std::string_view schedule, const spec::OffloadSpec& offload);

// The type of the request's products, as a cluster's peaks name it.
std::string_view peak_of(const Request& request);

// Whether the products of the run's recipe, where it has one, have whole groups under its layout, and sizes that
// kernels multiply (spec/recipe.h).
bool recipe_fits(const spec::RunSpec& run);

// [recompute] policy: those of the search.
inline constexpr std::array kPolicies = {"none", "selective", "full"};

// All rules of the engine and of the planner.
bool allowed(const Request& request, const spec::RunSpec& run);

// A run of the request on one rank, without parallelism: what spec::validate() and `tutti train` take once the search
// has set its layout.
spec::RunSpec plain_run(const Request& request);
// Cuts the layers of `run` into the stages of its schedule: balanced, or with no layer beside embedding and head.
void set_stages(spec::RunSpec& run);

// "tp 8, pp 16 interleaved x 7, dp 128, ZeRO-1, micro batch 1, selective recompute" of a run with dp_shard >= 1.
std::string describe_layout(const spec::RunSpec& run);

// Of the state of a run's parameters, what a checkpoint holds: the optimizer's, and weights without masters.
int64_t saved_bytes(const MemoryByPurpose& state, const spec::RunSpec& run);

// "bf16", "bf16, 8-bit products (block), muon": the types of the products, and the update rule if it is not AdamW.
std::string describe_numerics(const spec::RunSpec& run);

std::vector<int> divisors(int64_t n, int64_t most);  // ascending

}  // namespace tutti::planner
