// simulate/rehearsed.h: the time of a step of this system on a machine whose profile was measured: the real step of
// every rank is rehearsed and laid out in time.
#pragma once

#include "tutti/hardware/cluster.h"
#include "tutti/rehearsal/rehearse.h"
#include "tutti/simulate/machine_prices.h"
#include "tutti/simulate/profile.h"
#include "tutti/simulate/timeline.h"

namespace tutti::simulate {

struct RehearsedStep {
    Timeline timeline;
    double seconds = 0;  // of the step, on the cores of the machine
    double low = 1, high = 1;
    rehearsal::Rehearsal shown;                   // the rank with the most memory
    std::vector<parallel::GroupTraffic> traffic;  // of rank 0
    std::map<std::string, double> kernels;        // seconds by entry, of all ranks
    double communication = 0, between = 0;        // of all ranks: operations, and time outside kernels
};

// All ranks are threads of one process on the machine of the profile. `run` is validated for so many. `slow`:
// stragglers (TimelinePrices::slow).
RehearsedStep rehearse_in_time(const spec::RunSpec& run, const rehearsal::Target& target, int ranks,
                               const MachineProfile& profile, bool with_spans, const std::map<int, double>& slow = {});

// On a cluster, by the prices of machine_prices.h: one rank of each pipeline position stands for all ranks there (with
// coordinates of the first slow rank, if there is one), kernels and collectives run beside each other, as on GPUs.
// `target`: from rehearsal::target_for(cluster).
RehearsedStep rehearse_on(const spec::RunSpec& run, const rehearsal::Target& target, int ranks,
                          const hardware::Cluster& cluster, const Physics& physics, bool with_spans,
                          const std::map<int, double>& slow = {});

}  // namespace tutti::simulate
