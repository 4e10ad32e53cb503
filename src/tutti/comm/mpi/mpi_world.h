// comm/mpi/mpi_world.h: ranks as processes that mpirun or srun started and that find each other through MPI. In a build
// without MPI every function here is an error.
#pragma once

#include <functional>

#include "tutti/comm/launcher.h"
#include "tutti/comm/processes/process_world.h"

namespace tutti::comm {

// "Open MPI 4.1.4"; "" in a build without MPI.
std::string mpi_library();

// processes::run_processes over MPI; `launch` must be by a launcher that MPI knows. Once per process.
void run_mpi(const Launch& launch, const WorldOptions& options, const std::function<void(World&)>& body,
             const ProcessOptions& processes = {});

}  // namespace tutti::comm
