// comm/mpi/mpi_world.h: ranks as processes that mpirun or srun started and that find each other through MPI. The MPI
// library is opened at run time (api.h).
#pragma once

#include <functional>
#include <string>

#include "tutti/comm/launcher.h"
#include "tutti/comm/processes/process_world.h"

namespace tutti::comm {

// "Open MPI v4.1.4": the library that run_mpi would use for ranks that `launcher` started; "" where there is none.
std::string mpi_library(Launcher launcher);

// processes::run_processes over MPI; `launch` must be by a launcher that MPI knows. Once per process. UsageError, with
// the files that were tried, where there is no MPI library.
void run_mpi(const Launch& launch, const WorldOptions& options, const std::function<void(World&)>& body,
             const ProcessOptions& processes = {});

}  // namespace tutti::comm
