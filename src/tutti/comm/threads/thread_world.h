// comm/threads/thread_world.h: ranks as threads of this process. The default backend, which needs no launcher, so that
// distributed tests are ordinary tests.
#pragma once

#include <functional>

#include "tutti/comm/world.h"

namespace tutti::comm {

// Runs body(world) on `ranks` threads, one of them the caller's (rank 0), and returns when all have returned. If a body
// throws, the other ranks stop in their next wait, and run_ranks() rethrows the first error. UsageError unless
// ranks >= 1.
void run_ranks(int ranks, const WorldOptions& options, const std::function<void(World&)>& body);

}  // namespace tutti::comm
