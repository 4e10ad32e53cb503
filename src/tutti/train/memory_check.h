// train/memory_check.h: before anything is allocated, whether what the ranks are about to take fits where they take it:
// the host under each limit of its own and of its cgroups, and each GPU. A run that does not fit would be killed by the
// kernel without a word.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/device/device.h"
#include "tutti/plan/memory.h"
#include "tutti/spec/run_spec.h"

namespace tutti::train {

// What a rank is about to take under one limit.
struct MemoryNeed {
    MemoryLimit limit;
    int64_t bytes = 0;
};

// Of a rank on `device` whose rehearsal found `plan`: its peak, with what the host holds of what is offloaded. On a CPU
// segments count as far as they are touched, and offloaded memory is a file.
std::vector<MemoryNeed> needs_of(const plan::MemoryPlan& plan, Device& device);
// The same, and the copies of the state on the host while the run saves: in the background, and from a GPU always.
std::vector<MemoryNeed> needs_of(const spec::RunSpec& run, const plan::MemoryPlan& plan, Device& device);

// Adds up the needs of all ranks under each limit of each host. UsageError on every rank when one is exceeded, with the
// sum, what is available, the limit, and what to try; with `force` a warning instead. Within 10 % of a limit: a
// warning. Collective.
void check_memory(comm::Communicator& ranks, const std::vector<MemoryNeed>& of_rank, bool force,
                  const std::function<void(const std::string&)>& warn);

}  // namespace tutti::train
