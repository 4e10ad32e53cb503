// comm/run.h: starts the ranks of a run, by whichever engine the way this process was started asks for.
#pragma once

#include <functional>

#include "tutti/comm/launcher.h"
#include "tutti/comm/world.h"

namespace tutti::comm {

// Started by a launcher: body runs once, as this process's rank; `ranks` must then be 1 (not asked for) or what was
// started. The processes meet over MPI (mpirun, and srun where an MPI library is found) or over TCP (torchrun,
// Kubernetes, and srun without MPI), unless options.engine says which. Without a launcher body runs on `ranks` threads
// of this process. UsageError where launcher and engine do not fit.
void run(const Launch& launch, int ranks, const WorldOptions& options, const std::function<void(World&)>& body);

}  // namespace tutti::comm
