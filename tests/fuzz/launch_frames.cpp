// tests/fuzz/launch_frames.cpp: any bytes as what `tutti launch` and its agents read. The first byte says as what: a
// file of hosts, or the body of a frame that starts ranks, opens a store of copies, or brings output. Either an error,
// or a value that is the same when it is written and read again.
#include <cstdint>
#include <cstdlib>

#include "tutti/base/error.h"
#include "tutti/launch/agent.h"
#include "tutti/launch/hosts.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace tutti;
    if (size == 0) return 0;
    const std::string body(reinterpret_cast<const char*>(data) + 1, size - 1);
    try {
        switch (data[0] % 4) {
            case 0:
                for (const launch::HostLine& host : launch::parse_hosts(body, "input"))
                    if (host.name.empty() || host.address.empty() || host.slots < 1) std::abort();
                break;
            case 1: {
                const std::string written = to_body(launch::read_open_copies(body));
                if (to_body(launch::read_open_copies(written)) != written) std::abort();
                break;
            }
            case 2: {
                const std::string written = to_body(launch::read_start(body));
                if (to_body(launch::read_start(written)) != written) std::abort();
                break;
            }
            default: {
                const launch::RankOutput output = launch::read_output(body);
                if (launch::output_body(output.rank, output.stream, output.bytes) != body) std::abort();
            }
        }
    } catch (const Error&) {  // the answer to damage
    }
    return 0;
}
