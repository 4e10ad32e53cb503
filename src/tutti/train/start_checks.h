// train/start_checks.h: checks of a start before anything is allocated. All ranks must be about to train the same run,
// since processes started with different configs, data files or builds would train together silently. The memory of all
// ranks must fit, since the kernel would kill a run that does not. And schedulers start a job again that has died,
// whatever the cause: a run that dies before every checkpoint must not use a cluster for ever.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/device/device.h"
#include "tutti/engine/factories.h"
#include "tutti/rehearsal/rehearse.h"
#include "tutti/spec/run_spec.h"

namespace tutti::train {

// The version of this rank's program, the run directory, and every key of the config, each as a line "name = value".
std::string recipe_of(const spec::RunSpec& run, const std::string& out);

// Compares the lines "name = value" of all ranks. UsageError on every rank when some differ, with the names, the
// values, and the ranks and hosts that have them. Collective.
void check_same(comm::Communicator& ranks, const std::string& lines);

// The memory that a rank is about to allocate under one limit: of the host, of a cgroup, or of a GPU.
struct MemoryNeed {
    MemoryLimit limit;
    int64_t bytes = 0;
};

// The needs of a rank on `device` with the rehearsed `plan`: its peak, and offloaded memory on the host. On a CPU,
// segments count as far as they are touched, and offloaded memory is a file.
std::vector<MemoryNeed> needs_of(const rehearsal::MemoryPlan& plan, Device& device);
// The same with the copies of the state that saving makes on the host: for background saves, and for every save of a
// GPU; and with `copies` of it in the host's memory (spec/rules.h).
std::vector<MemoryNeed> needs_of(const spec::RunSpec& run, const rehearsal::MemoryPlan& plan, Device& device,
                                 int copies = 0);

// The needs of ranks beside the available memory, under the limit that is tightest for them.
struct MemoryVerdict {
    int64_t needed = 0, available = 0;
    int ranks = 0;
    std::string limit;  // "host, origin"; "": no limit

    double share() const;
    bool fits() const { return share() <= 1; }
    bool close() const { return share() > 0.9; }
    // "2 ranks together need 3.0 GiB of memory, saves included, and 2.0 GiB are available (host, MemAvailable)"
    std::string text() const;
};
// The verdict for `ranks` equal ranks on this host, computed by one process.
MemoryVerdict judge_memory(const std::vector<MemoryNeed>& of_rank, int ranks);

// Adds up the needs of all ranks under each limit of each host. UsageError on every rank when one is exceeded, with the
// sum, what is available, the limit, and what to try; with `force` a warning instead. Within 10 % of a limit: a
// warning. Collective.
void check_memory(comm::Communicator& ranks, const std::vector<MemoryNeed>& of_rank, bool force,
                  const std::function<void(const std::string&)>& warn);

// UsageError on every rank if the weights and gradients of the model alone, divided among all ranks, exceed a limit: a
// start would rehearse a model of any size before it found that. Not with offloaded weights. Collective.
void check_least_memory(comm::Communicator& ranks, const spec::RunSpec& run, const engine::Factories& factories,
                        Device& device);

inline constexpr int64_t kMostStarts = 3;
inline constexpr const char* kStarts = "starts.json";
// Counts in `out`/starts.json one more start from the checkpoint after `step`. InternalError when the last `most`
// starts from there died before a new checkpoint, unless `force`.
void count_start(const std::string& out, int64_t step, bool force, int64_t most = kMostStarts);
// The run has ended by itself, or was told to.
void forget_starts(const std::string& out);

}  // namespace tutti::train
