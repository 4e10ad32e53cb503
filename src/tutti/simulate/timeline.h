// simulate/timeline.h: the programs of all ranks, as rehearsed, laid out in time: kernels one after another on their
// rank, operations when all of their ranks have begun them. The slower and finer of the two predictions.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tutti/base/svg.h"
#include "tutti/base/trace.h"
#include "tutti/rehearsal/program.h"
#include "tutti/report/trace_read.h"

namespace tutti::simulate {

// Prices of kernels and operations. Both functions must be set, and give the same for the same arguments: a layout asks
// once and keeps the answer.
struct TimelinePrices {
    std::function<double(const rehearsal::KernelCall&)> kernel;
    // An operation with the ranks of its group, or a message with its two ranks: by its kind and bytes.
    std::function<double(const comm::Summary&, const std::vector<int>& ranks)> operation;
    // True: operations run beside the kernels, those of a group one after another. False: they take the time of the
    // rank's own thread, and data moves only while ranks wait, as without a progress thread.
    bool beside_kernels = false;
    double contention = 0;       // of beside(): collectives and the kernels beside them
    double launch = 0;           // seconds of the host for a kernel, beside the device
    double step = 0;             // seconds of a rank that nothing else accounts for
    std::map<int, double> slow;  // stragglers: how many times as long the kernels of these ranks take
    // Bytes over the link to the host. Not set: kernels and operations have the host's memory at hand, copies are free.
    std::function<double(double bytes)> host = {};
};

struct TimedSpan {
    Activity activity = Activity::compute;
    std::string name;   // "forward of h.3", "all_reduce"
    std::string group;  // of operations and waits
    double begin = 0, end = 0;
    // Of operations: the bytes of the larger tensor, the ranks of the world in it (a message: from, to), and the place
    // in the model that waits for it, "forward of h.3"; "": none was laid out.
    double bytes = 0;
    std::vector<int> ranks = {};
    std::string needed = {};
};

struct TimedMemory {
    double time = 0;
    MemoryByPurpose bytes;
};

// Seconds of operations, and of these the ones in which kernels of the same rank ran.
struct Overlap {
    double seconds = 0, beside_kernels = 0;
};

// Calls of kernels, and their seconds.
struct Calls {
    int64_t number = 0;
    double seconds = 0;
};

struct Timeline {
    double seconds = 0;          // until the last rank has ended
    double operations = 0;       // seconds of all operations, of each rank in them
    std::vector<int> ranks;      // of the world, those laid out
    std::vector<double> busy;    // of each rank: kernels and its part of operations
    std::vector<double> waited;  // of each rank
    // Of each rank: seconds waited by group, copies from and to the host as "host", the host itself as "launches".
    std::vector<std::map<std::string, double>> waited_for;
    std::map<std::string, Overlap> overlaps;    // by group, of the operations that ranks waited for
    std::vector<std::vector<double>> of_place;  // of each rank: seconds by place of its program
    std::map<std::string, Calls> kernels;       // by entry, of all ranks
    // Of each rank, when asked for; memory as the program samples it, again in each repetition.
    std::vector<std::vector<TimedSpan>> spans;
    std::vector<std::vector<TimedMemory>> memory;
};

// `programs`: of the given ranks of the world, one each. Ranks that are not given are assumed to begin operations with
// the others. Collectives that a step begins and does not wait for, gathers of the updated weights, are those of the
// step before: they begin with it. Error when some ranks wait for operations that others never begin.
Timeline lay_out(const std::vector<int>& ranks, const std::vector<rehearsal::Program>& programs,
                 const TimelinePrices& prices, bool with_spans);
// `programs`: of all ranks 0, 1, ...
Timeline lay_out(const std::vector<rehearsal::Program>& programs, const TimelinePrices& prices, bool with_spans);

// The time of a step with fewer cores than ranks: at least the busy time of all ranks divided by the cores.
double on_cores(const Timeline& timeline, int cores);

// The format of trace.json (train/trace_file.h), which `tutti report` and ui.perfetto.dev read.
std::string to_trace(const Timeline& timeline);

// The spans as those of a trace, one step of each rank.
std::vector<report::TracedRank> traced(const Timeline& timeline);
// The spans of the first ranks: their kernels, and below them waits and operations.
svg::Picture picture_of(const Timeline& timeline, const std::string& title);

}  // namespace tutti::simulate
