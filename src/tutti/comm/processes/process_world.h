// comm/processes/process_world.h: ranks as processes of one or many hosts: shared memory inside a host, messages of a
// Wire between hosts. The Wire is MPI (mpi/mpi_wire.cpp) or TCP (tcp/tcp_wire.h).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/comm/launcher.h"
#include "tutti/comm/world.h"

namespace tutti::comm {

// The host of each rank, which lets tests communicate between hosts on one machine. Empty: the real hosts.
using AssignedHosts = std::vector<int>;

// "Open MPI v4.1.4": the library that run_mpi() uses for ranks of `launcher`; "" if none is found.
std::string mpi_library(Launcher launcher);

// Each runs body(world) in this process as its rank, as run_processes() does.
// Over MPI, which must know the launcher of `launch`; once per process. UsageError, with the files that were tried, if
// no MPI library is found.
void run_mpi(const Launch& launch, const WorldOptions& options, const std::function<void(World&)>& body,
             const AssignedHosts& hosts = {});
// Over TCP. UsageError if neither the launcher nor the environment gives an address (tcp/rendezvous.h).
void run_tcp(const Launch& launch, const WorldOptions& options, const std::function<void(World&)>& body,
             const AssignedHosts& hosts = {});

namespace processes {

class Wire;

// Runs body(world) in this process as its rank, and returns when all ranks have returned. `make_wire` connects the
// ranks. An exception of the body is rethrown after the other ranks were told, the flight record was written, and the
// other ranks had two seconds to write theirs. The process must then exit with a code other than zero, so that the
// launcher ends the remaining ones. `backend` names the world ("mpi").
void run_processes(const std::string& backend, const std::function<std::unique_ptr<Wire>()>& make_wire,
                   const WorldOptions& options, const std::function<void(World&)>& body);

}  // namespace processes
}  // namespace tutti::comm
