// simulate/rehearsed.h: the time of a step of this system on a machine whose profile was measured: the real step of
// every rank is rehearsed and laid out in time.
#pragma once

#include "tutti/hardware/cluster.h"
#include "tutti/rehearsal/rehearse.h"
#include "tutti/simulate/machine_prices.h"
#include "tutti/simulate/prediction.h"
#include "tutti/simulate/profile.h"
#include "tutti/simulate/timeline.h"

namespace tutti::simulate {

struct RehearsedStep {
    Timeline timeline;
    double seconds = 0;          // of the step, on the cores of the machine
    double low = 1, high = 1;    // 80 of 100 runs of a kind take between low and high times the predicted time
    rehearsal::Rehearsal shown;  // the rank with the most memory
    std::vector<parallel::GroupTraffic> traffic;  // of rank 0
    std::map<std::string, double> kernels;        // seconds by entry, of all ranks
    double between = 0;                           // of rehearse_in_time(): time outside kernels, of all ranks
    // Of rehearse_on():
    StepTime time;                     // seconds of the busiest rank by kind; its waits for the pipeline are the bubble
    int64_t offloaded = 0, saved = 0;  // the most that a rank offloads, and saves
    int ranks = 1;
    double tokens = 0;  // of a step
    double peak = 0;    // FLOP/s of a rank in the type of the run

    double tokens_per_s() const { return tokens / seconds; }
    double share_of_peak(double flops_of_all) const { return flops_of_all / (seconds * ranks * peak); }
    double mfu() const { return share_of_peak(shown.counts.model.causal() * tokens); }
    double mfu_full() const { return share_of_peak(shown.counts.model.full() * tokens); }
    double hfu() const { return share_of_peak(shown.counts.hardware.causal() * tokens); }
};

// All ranks are threads of one process on the machine of the profile. `run` is validated for so many. `slow`:
// stragglers (TimelinePrices::slow).
RehearsedStep rehearse_in_time(const spec::RunSpec& run, const rehearsal::Target& target, int ranks,
                               const MachineProfile& profile, bool with_spans, const std::map<int, double>& slow = {});

// Prices of kernels, operations and copies on a cluster.
TimelinePrices prices_on(const spec::RunSpec& run, const hardware::Cluster& cluster, const Physics& physics);

// UsageError where the device has no products of the run's type or of its recipe's codes, or where the run offloads and
// the bandwidth between a device and its host is not known.
void check_machine(const spec::RunSpec& run, const hardware::Cluster& cluster);

// On a cluster. The ranks of rehearsal::rehearse_ranks() stand for all: their fullest is shown, and the step is that of
// their chain, with slow ranks that of the slowest chain, as the others wait for it. Kernels and collectives run beside
// each other, as on GPUs. `target`: from rehearsal::target_for(cluster). `every_rank`: each rank is laid out, with its
// own operations. Requires check_machine().
RehearsedStep rehearse_on(const spec::RunSpec& run, const rehearsal::Target& target, int ranks,
                          const hardware::Cluster& cluster, const Physics& physics, bool with_spans,
                          const std::map<int, double>& slow = {}, bool every_rank = false);

// The same without its timeline, traffic and kernels, and its seconds within 0.5 %. Where blocks of the ranks of a
// pipeline need no more memory for more microbatches, many are rehearsed as few and as a round more, since each round
// takes as long; ranks that gaps between blocks may be too large for are rehearsed in full. `must_fit`: OutOfMemory if
// a rank does not fit.
RehearsedStep rehearse_sums(const spec::RunSpec& run, const rehearsal::Target& target, int ranks,
                            const hardware::Cluster& cluster, const Physics& physics, bool must_fit = false);

// A step of rehearse_on(): "step_time_s", "step_time_low_s", "step_time_high_s", "tokens_per_s",
// "tokens_per_s_per_rank", "mfu_causal", "mfu_full", "hfu", "mfu_of_precision_peak" (causal), "peak_bytes",
// "offloaded_bytes", "memory" by purpose, "time" by kind.
Json describe(const RehearsedStep& step);

// Bytes in the memory of a node's host: the state and activations that its ranks offload, pinned; the copies of a save;
// the copies that outlive the ranks (checkpoint.memory_every, spec/rules.h); a margin for the system.
struct HostMemory {
    double offloaded = 0, saves = 0, copies = 0, system = 0;
    double total() const { return offloaded + saves + copies + system; }
};
HostMemory host_memory(const spec::RunSpec& run, double offloaded_of_rank, double saved_of_rank, int ranks,
                       const hardware::Cluster& cluster);
// "12.0 GiB offloaded, 3.00 GiB for copies of a save, 102 GiB for the system: 117 GiB of 2.00 TiB".
std::string text_of(const HostMemory& need, const hardware::Cluster& cluster);
Json to_json(const HostMemory& need, const hardware::Cluster& cluster);
// "" where the cluster's memory of a host is enough or not known.
std::string host_memory_problem(const HostMemory& need, const hardware::Cluster& cluster);

}  // namespace tutti::simulate
