// tests/fuzz/trace.cpp: any bytes as trace.json. Either DataError, or times of ranks that are no more than their steps
// last.
#include <cmath>
#include <cstdint>
#include <cstdlib>

#include "tutti/base/error.h"
#include "tutti/report/trace_read.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace tutti;
    try {
        const auto trace = report::parse_trace({reinterpret_cast<const char*>(data), size}, "input");
        for (const report::RankTimes& t : report::times_of(trace)) {
            const double most = t.step_ms * (1 + 1e-9) + 1e-9;
            for (const double ms : {t.compute_ms, t.data_ms, t.wait_ms, t.communication_ms, t.hidden_ms})
                if (!(ms >= -1e-9 * (1 + t.step_ms) && ms <= most)) std::abort();
        }
    } catch (const DataError&) {  // the answer to damage
    }
    return 0;
}
