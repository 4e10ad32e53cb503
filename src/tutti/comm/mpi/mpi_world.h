// comm/mpi/mpi_world.h: ranks as processes of mpirun or srun, which find each other through MPI. The MPI library is
// opened at run time (api.h).
#pragma once

#include <functional>
#include <string>

#include "tutti/comm/launcher.h"
#include "tutti/comm/processes/process_world.h"

namespace tutti::comm {

// "Open MPI v4.1.4": the library that run_mpi() uses for ranks of `launcher`; "" where none is found.
std::string mpi_library(Launcher launcher);

// processes::run_processes over MPI; MPI must know the launcher of `launch`. Once per process. UsageError, with the
// files that were tried, where no MPI library is found.
void run_mpi(const Launch& launch, const WorldOptions& options, const std::function<void(World&)>& body,
             const AssignedHosts& hosts = {});

}  // namespace tutti::comm
