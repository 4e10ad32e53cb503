// comm/run.h: starts the ranks of a run, by the backend that fits the launcher.
#pragma once

#include <functional>

#include "tutti/comm/launcher.h"
#include "tutti/comm/world.h"

namespace tutti::comm {

// With a launcher, runs body(world) once, as this process's rank; `ranks` must be 1 (not given) or the launcher's
// number. The processes communicate over MPI (mpirun, and srun if an MPI library is found) or over TCP (torchrun,
// Kubernetes, and srun without MPI), unless options.backend says otherwise. Without a launcher, runs the body on
// `ranks` threads of this process. UsageError if launcher, ranks and backend do not fit together.
void run(const Launch& launch, int ranks, const WorldOptions& options, const std::function<void(World&)>& body);

// Runs `prepare`, such as the reading of a config, before this process connects to the other ranks, and rethrows its
// exception. Ranks that connect over TCP are told the reason, so they end at once and do not wait for
// options.timeout_s. Launchers of MPI, and `tutti launch`, end the other ranks themselves.
void before_ranks_meet(const Launch& launch, const WorldOptions& options, const std::function<void()>& prepare);

}  // namespace tutti::comm
