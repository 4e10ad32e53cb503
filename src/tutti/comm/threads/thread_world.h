// comm/threads/thread_world.h: ranks as threads of this process, the default backend: nothing to install or to start,
// and every distributed test is an ordinary test.
#pragma once

#include <functional>

#include "tutti/comm/world.h"

namespace tutti::comm {

// Runs body(world) on `ranks` threads, one of them the caller's (rank 0), and returns when all have returned. When one
// body throws, the other ranks stop in their next wait; run_ranks() then rethrows the first error.
void run_ranks(int ranks, const WorldOptions& options, const std::function<void(World&)>& body);

}  // namespace tutti::comm
