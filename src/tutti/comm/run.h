// comm/run.h: starts the ranks of a run, by the backend that fits the launcher.
#pragma once

#include <functional>

#include "tutti/comm/launcher.h"
#include "tutti/comm/world.h"

namespace tutti::comm {

// With a launcher the body runs once, as this process's rank; `ranks` must then be 1 (not asked for) or the launcher's
// number. The processes meet over MPI (mpirun, and srun where an MPI library is found) or over TCP (torchrun,
// Kubernetes, and srun without MPI), or as options.backend says. Without a launcher the body runs on `ranks` threads of
// this process. UsageError where launcher and backend do not fit.
void run(const Launch& launch, int ranks, const WorldOptions& options, const std::function<void(World&)>& body);

// What a process does before it meets the other ranks, such as reading its config. Where `prepare` throws, the ranks
// that meet over TCP end with the reason at once; else they would wait options.timeout_s for this one. Launchers of MPI
// end them by themselves, and so does `tutti launch`. Throws what `prepare` throws.
void before_ranks_meet(const Launch& launch, const WorldOptions& options, const std::function<void()>& prepare);

}  // namespace tutti::comm
