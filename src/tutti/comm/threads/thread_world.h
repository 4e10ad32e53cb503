// comm/threads/thread_world.h: ranks as threads of this process, the default engine. Nothing to install or to start,
// and the reason why every distributed test is an ordinary test.
#pragma once

#include <functional>

#include "tutti/comm/world.h"

namespace tutti::comm {

// Runs body(world) on `ranks` threads, one of them the caller's (rank 0), and returns when all have returned. When one
// throws, the others stop in their next wait; the first error is thrown again here once all have stopped.
void run_ranks(int ranks, const WorldOptions& options, const std::function<void(World&)>& body);

}  // namespace tutti::comm
