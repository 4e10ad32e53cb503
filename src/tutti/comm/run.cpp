#include "tutti/comm/run.h"

#include "tutti/comm/mpi/mpi_world.h"
#include "tutti/comm/threads/thread_world.h"

namespace tutti::comm {

void run(const Launch& launch, int ranks, const WorldOptions& options, const std::function<void(World&)>& body) {
    switch (launch.launcher) {
        case Launcher::none: return run_ranks(ranks, options, body);
        case Launcher::slurm:
        case Launcher::open_mpi:
        case Launcher::mpich:
            check<UsageError>(ranks == 1 || ranks == launch.size, "--ranks ", ranks, ", but ", name_of(launch.launcher),
                              " started ", launch.size, " (", launch.evidence, "): leave --ranks out");
            return run_mpi(launch, options, body);
        case Launcher::torchrun:
        case Launcher::kubernetes: break;
    }
    throw UsageError(
        concat("this process was started by ", name_of(launch.launcher), " (", launch.evidence,
               "), which no engine of this build serves: use mpirun, srun, or --ranks N without a launcher"));
}

}  // namespace tutti::comm
