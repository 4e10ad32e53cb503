// rehearsal/program.h: what one rank does in a step, in order: the kernels that it runs, the operations that it begins
// and waits for, and where in the model. Plain data, over which a timeline can be laid.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "tutti/comm/flight_record.h"
#include "tutti/kernels/work.h"

namespace tutti::rehearsal {

struct KernelCall {
    const char* kernel = "";  // entry of the kernel table
    kernels::Work work;
};
// Begins the operation `sequence` of a group; messages count per pair of ranks.
struct BeginOperation {
    size_t group = 0;  // in Program::groups
    uint64_t sequence = 0;
    comm::Summary operation;
};
struct WaitForOperation {
    size_t group = 0;
    uint64_t sequence = 0;
    comm::Kind kind = comm::Kind::barrier;
};

struct Action {
    std::variant<KernelCall, BeginOperation, WaitForOperation> what;
    size_t place = 0;   // in Program::places
    int64_t times = 1;  // how often the step repeats it: of several like microbatches one is kept
};

struct Program {
    struct Group {
        std::string name;
        std::vector<int> ranks;  // of the world
    };
    std::vector<Group> groups;
    std::vector<std::string> places;  // "forward of h.3", "optimizer"
    std::vector<Action> actions;

    // Floating-point operations of all kernels, repetitions included.
    double flops() const;
};

// Calls of one kernel on problems of one shape.
struct KernelTotal {
    const char* kernel = "";
    int64_t calls = 0;
    kernels::Work work;  // of all calls together
};
// Of all actions, repetitions included; those with the most FLOPs first, then those with the most bytes.
std::vector<KernelTotal> kernel_totals(const Program& program);

// Where two programs of ranks of one world would call different operations, or differently many, in a group that both
// belong to; "" when they agree. Messages: what one sends to the other must be what the other receives.
std::string first_difference(int rank, const Program& program, int other_rank, const Program& other);

}  // namespace tutti::rehearsal
