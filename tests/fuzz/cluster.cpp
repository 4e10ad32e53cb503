// tests/fuzz/cluster.cpp: any bytes as a cluster file. Either UsageError, or a cluster whose numbers a forecast can
// divide by.
#include "tutti/hardware/cluster.h"

#include <cmath>
#include <cstdint>
#include <cstdlib>

#include "tutti/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace tutti;
    try {
        const hardware::Cluster c = hardware::parse_cluster({reinterpret_cast<const char*>(data), size}, "input");
        for (const auto& [type, peak] : c.peaks)
            if (!(std::isfinite(peak) && peak > 0)) std::abort();
        for (const double positive : {c.memory, c.memory_bandwidth, c.clock()})
            if (!(std::isfinite(positive) && positive > 0)) std::abort();
    } catch (const UsageError&) {  // the answer to a file that describes no cluster
    }
    return 0;
}
