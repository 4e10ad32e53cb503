// plan/memory.h: how many bytes a rank will hold, by purpose, before anything is allocated. One step is played on a
// GhostTape, so the peak is found where it happens, not bounded by a formula. Stands on spec/; the plan card prints it,
// train/ compares it with what device::Allocator measured.
#pragma once

#include <string>

#include "tutti/plan/ghost_model.h"
#include "tutti/plan/ledger.h"
#include "tutti/spec/run_spec.h"

namespace tutti::plan {

struct MemoryPlan {
    MemoryByPurpose at_peak;  // what each purpose holds at the instant of the peak of the sum
    MemoryByPurpose peaks;    // each purpose's own peak; their sum is more than the peak of the sum
    std::string peak_place;   // "backward of block 11"
    int64_t offloaded = 0;    // the most that is away at one time; not in the peaks

    int64_t peak() const { return at_peak.total(); }
};

// A rank of a run of `ranks`, one microbatch after another, as train/step.cpp runs them. Counts what is asked for. Of
// the ranks, which differ by the padding of the last shard, the first. Throws UsageError for a request that the plan
// cannot count: a parallel axis above 1 but data parallelism, fp8, an unknown compute type, optimizer or recompute
// policy.
MemoryPlan predict_memory(const spec::RunSpec& run, const Workspaces& workspaces = {}, int ranks = 1);

// The state of `values` trainable values on a rank that holds them: weights in the compute type, f32 gradients (from a
// step's first backward to the next step), and under optimizer the moments and, for bf16, the f32 master weights. A
// sharding axis divides `values` per field.
MemoryByPurpose state_bytes(int64_t values, const std::string& compute, const std::string& optimizer);

}  // namespace tutti::plan
