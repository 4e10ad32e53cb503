// comm/mpi/absent.cpp: the engine of processes in a build without MPI. CMake compiles either this file or the others.
#include "tutti/base/error.h"
#include "tutti/comm/mpi/mpi_world.h"

namespace tutti::comm {

namespace {

[[noreturn]] void refuse(const Launch& launch) {
    throw UsageError(concat("this process was started as rank ", launch.rank, " of ", launch.size, " by ",
                            name_of(launch.launcher), " (", launch.evidence,
                            "), but this build has no MPI: install libopenmpi-dev and configure with -DTUTTI_MPI=ON, "
                            "set comm.engine = \"tcp\", or use --ranks N, which runs the ranks as threads"));
}

}  // namespace

std::string mpi_library() { return ""; }

void run_mpi(const Launch& launch, const WorldOptions&, const std::function<void(World&)>&, const ProcessOptions&) {
    refuse(launch);
}

}  // namespace tutti::comm
