// comm/tcp/tcp_world.h: ranks as processes of any launcher, which find each other over TCP without MPI.
#pragma once

#include <functional>

#include "tutti/comm/launcher.h"
#include "tutti/comm/processes/process_world.h"

namespace tutti::comm {

// processes::run_processes over TCP. UsageError where neither launcher nor environment gives an address (rendezvous.h).
void run_tcp(const Launch& launch, const WorldOptions& options, const std::function<void(World&)>& body,
             const AssignedHosts& hosts = {});

}  // namespace tutti::comm
