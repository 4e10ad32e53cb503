// comm/tcp/tcp_world.h: ranks as processes that any launcher started, which find each other over TCP: no MPI needed.
#pragma once

#include <functional>

#include "tutti/comm/launcher.h"
#include "tutti/comm/processes/process_world.h"

namespace tutti::comm {

// processes::run_processes over TCP; where the ranks meet: tcp/meeting.h. UsageError where the launcher does not say.
void run_tcp(const Launch& launch, const WorldOptions& options, const std::function<void(World&)>& body,
             const ProcessOptions& processes = {});

}  // namespace tutti::comm
