// comm/processes/process_world.h: ranks as processes of one or many hosts: shared memory inside a host, the messages of
// a Wire between hosts. Same shape as threads/thread_world.h. mpi/mpi_world.h and tcp/tcp_world.h bring the Wire.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/comm/world.h"

namespace tutti::comm {

struct ProcessOptions {
    // Shared memory of a host, for all groups of a rank together. Only what is used takes memory.
    int64_t shared_bytes_per_rank = int64_t{64} << 20;
    // The host that each rank counts as being on: tests of the path between hosts on one machine. Empty: as it is.
    std::vector<int> hosts;
};

namespace processes {

class Wire;

// Runs body(world) in this process as its rank, and returns when all ranks have. `make_wire` finds the others. What the
// body throws is thrown again, after the other ranks were told, the flight record was written, and the others have had
// two seconds to do the same: the process must then end with a code other than zero, which makes its launcher end the
// rest. `engine` names the world ("mpi").
void run_processes(const std::string& engine, const std::function<std::unique_ptr<Wire>()>& make_wire,
                   const WorldOptions& options, const std::function<void(World&)>& body,
                   const ProcessOptions& processes);

}  // namespace processes
}  // namespace tutti::comm
