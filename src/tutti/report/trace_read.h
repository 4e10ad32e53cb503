// report/trace_read.h: reads trace.json of a run: where the time of each rank's steps went, and how much of its
// communication was hidden behind compute.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/purpose.h"

namespace tutti::report {

struct TracedSpan {
    std::string name, activity, group;  // "backward h.3", "compute" (base/trace.h), "dp_shard"
    int64_t step = 0, number = 0, bytes = 0;
    int track = 0;
    double begin_us = 0, end_us = 0;
    // Of predicted operations: the ranks of the world in it (a message: from, to), and what waits for it.
    std::vector<int> ranks = {};
    std::string needed = {};
};

// The memory in use from this time on.
struct TracedMemory {
    double us = 0;
    MemoryByPurpose bytes;
};

struct TracedRank {
    int rank = 0;
    std::vector<TracedSpan> spans;
    std::vector<TracedMemory> memory = {};  // in order; empty: not recorded
};

// The spans by rank. DataError with the file and the place in it when the file is no trace of this program.
std::vector<TracedRank> read_trace(const std::filesystem::path& path);
std::vector<TracedRank> parse_trace(std::string_view text, const std::string& name);

// Means per traced step of one rank. Compute excludes the waits inside; on a GPU it is the GPU's compute. Communication
// is the time with at least one operation in flight, by the GPU's clock under NCCL; hidden is the part of it in which
// the rank computed. Without a progress thread data moves only while a rank waits or begins another operation: hidden
// time then shows that other ranks could continue, and not that data moved during compute.
struct RankTimes {
    int rank = 0;
    int64_t steps = 0;
    double step_ms = 0, compute_ms = 0, data_ms = 0, wait_ms = 0, communication_ms = 0, hidden_ms = 0;
};
std::vector<RankTimes> times_of(const std::vector<TracedRank>& trace);

}  // namespace tutti::report
