#include "tutti/comm/tcp/tcp_world.h"

#include "tutti/comm/tcp/tcp_wire.h"

namespace tutti::comm {

void run_tcp(const Launch& launch, const WorldOptions& options, const std::function<void(World&)>& body,
             const ProcessOptions& processes) {
    const tcp::Meeting meeting = tcp::meeting_of(launch, process_environment());
    processes::run_processes(
        "tcp", [&] { return std::make_unique<tcp::TcpWire>(launch, meeting, options.timeout_s, processes.hosts); },
        options, body, processes);
}

}  // namespace tutti::comm
