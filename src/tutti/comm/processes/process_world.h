// comm/processes/process_world.h: ranks as processes of one or many hosts: shared memory inside a host, messages of a
// Wire between hosts. mpi/mpi_world.h and tcp/tcp_world.h supply the Wire.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/comm/world.h"

namespace tutti::comm {

// The host assigned to each rank, for tests of the path between hosts on one machine. Empty: the real hosts.
using AssignedHosts = std::vector<int>;

namespace processes {

class Wire;

// Runs body(world) in this process as its rank, and returns when all ranks have returned. `make_wire` finds the other
// ranks. An exception of the body is rethrown after the other ranks were told, the flight record was written, and the
// other ranks have had two seconds for their records: the process must then exit with a code other than zero, which
// makes the launcher end the rest. `backend` names the world ("mpi").
void run_processes(const std::string& backend, const std::function<std::unique_ptr<Wire>()>& make_wire,
                   const WorldOptions& options, const std::function<void(World&)>& body);

}  // namespace processes
}  // namespace tutti::comm
