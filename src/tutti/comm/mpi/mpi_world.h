// comm/mpi/mpi_world.h: ranks as processes of one or many hosts, started by mpirun or srun. Same shape as
// threads/thread_world.h. In a build without MPI every function here is an error.
#pragma once

#include <functional>
#include <memory>

#include "tutti/comm/launcher.h"
#include "tutti/comm/world.h"

namespace tutti::comm {

struct MpiOptions {
    // Shared memory of a host, for all groups of a rank together. Only what is used takes memory.
    int64_t shared_bytes_per_rank = int64_t{64} << 20;
    // The host that each rank counts as being on: tests of the path between hosts on one machine. Empty: as MPI says.
    std::vector<int> hosts;
};

// "Open MPI 4.1.4"; "" in a build without MPI.
std::string mpi_library();

// This process's place among the ranks that `launch` started, which must be by a launcher that MPI knows. One per
// process. A World that is destroyed by an exception aborts the others.
std::unique_ptr<World> mpi_world(const Launch& launch, const WorldOptions& options, const MpiOptions& mpi = {});

// Runs body(world) in this process as its rank, and returns when all ranks have. What it throws is thrown again, after
// the other ranks were told, the flight record was written, and the others have had two seconds to do the same: the
// process must then end with a code other than zero, which makes mpirun end the rest.
void run_mpi(const Launch& launch, const WorldOptions& options, const std::function<void(World&)>& body,
             const MpiOptions& mpi = {});

}  // namespace tutti::comm
