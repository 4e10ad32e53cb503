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

// How what ranks need stands to what is available, under the limit that is tightest for them.
struct MemoryVerdict {
    int64_t needed = 0, available = 0;
    int ranks = 0;
    std::string limit;  // "host, origin"; "": there is none

    double share() const;
    bool fits() const { return share() <= 1; }
    bool close() const { return share() > 0.9; }
    // "2 ranks together need 3.0 GiB of memory, saves included, and 2.0 GiB are available (host, MemAvailable)"
    std::string text() const;
};
// Of so many equal ranks on this host, without them: for a dry run.
MemoryVerdict judge_memory(const std::vector<MemoryNeed>& of_rank, int ranks);

// Adds up the needs of all ranks under each limit of each host. UsageError on every rank when one is exceeded, with the
// sum, what is available, the limit, and what to try; with `force` a warning instead. Within 10 % of a limit: a
// warning. Collective.
void check_memory(comm::Communicator& ranks, const std::vector<MemoryNeed>& of_rank, bool force,
                  const std::function<void(const std::string&)>& warn);

}  // namespace tutti::train
