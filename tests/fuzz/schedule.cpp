// tests/fuzz/schedule.cpp: any bytes as the CSV file of a schedule. Either UsageError, or a schedule that can be
// judged; a legal one is the same when it is written and read again, and has a timeline.
#include "tutti/schedule/schedule.h"

#include <cstdint>
#include <cstdlib>

#include "tutti/base/error.h"
#include "tutti/schedule/timeline.h"
#include "tutti/schedule/validate.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace tutti;
    try {
        const schedule::Schedule read = schedule::parse_csv({reinterpret_cast<const char*>(data), size}, "input");
        if (!schedule::problems_of(read).empty()) return 0;
        if (schedule::parse_csv(schedule::to_csv(read), "input") != read) std::abort();
        schedule::simulate(read, schedule::Times<double>{});
    } catch (const UsageError&) {  // the answer to text that is no schedule
    }
    return 0;
}
