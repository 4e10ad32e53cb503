// card/memory.h: the memory of a rank as plain data.
#pragma once

#include <string>

#include "tutti/base/purpose.h"

namespace tutti::card {

// Bytes of a rank during its first step, rehearsed or counted by an allocator.
struct MemoryPlan {
    MemoryByPurpose at_peak;  // of each purpose at the peak of the sum
    MemoryByPurpose peaks;    // each purpose's own peak; their sum is more than the peak of the sum
    std::string peak_place;   // "backward of h.11"
    int64_t offloaded = 0;    // peak of the offload device; not in the other peaks
    int64_t reserved = 0;     // taken from the system: the peak and the gaps between its blocks
    int64_t saved = 0;        // state that this rank writes into a checkpoint

    int64_t peak() const { return at_peak.total(); }
};

}  // namespace tutti::card
