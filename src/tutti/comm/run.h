// comm/run.h: starts the ranks of a run, by whichever engine the way this process was started asks for.
#pragma once

#include <functional>

#include "tutti/comm/launcher.h"
#include "tutti/comm/world.h"

namespace tutti::comm {

// Started by mpirun or srun: body runs once, as this process's rank, over MPI; `ranks` must then be 1 (not asked for)
// or what was started. Otherwise on `ranks` threads of this process. UsageError for launchers that no engine serves.
void run(const Launch& launch, int ranks, const WorldOptions& options, const std::function<void(World&)>& body);

}  // namespace tutti::comm
