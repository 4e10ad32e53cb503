// simulate/rehearsed.h: the time of a step of this system on a machine whose profile was measured: the real step of
// every rank is rehearsed and laid out in time.
#pragma once

#include "tutti/rehearsal/rehearse.h"
#include "tutti/simulate/profile.h"
#include "tutti/simulate/timeline.h"

namespace tutti::simulate {

struct RehearsedStep {
    Timeline timeline;
    double seconds = 0;  // of the step, on the cores of the machine
    double low = 1, high = 1;
    rehearsal::Rehearsal shown;             // the rank with the most memory
    std::map<std::string, double> kernels;  // seconds by entry, of all ranks
    double communication = 0, between = 0;  // of all ranks: operations, and what is outside kernels
};

// All ranks are threads of one process on the machine of the profile. `run` is validated for so many.
RehearsedStep rehearse_in_time(const spec::RunSpec& run, const rehearsal::Target& target, int ranks,
                               const MachineProfile& profile, bool with_spans);

}  // namespace tutti::simulate
