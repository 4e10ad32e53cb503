// rehearsal/program.h: the actions of one rank in a step, in order: kernels, operations and copies begun, and waits for
// them, each with its place in the model. Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "tutti/base/purpose.h"
#include "tutti/comm/flight_record.h"
#include "tutti/kernels/work.h"

namespace tutti::rehearsal {

struct KernelCall {
    const char* kernel = "";  // entry of the kernel table
    kernels::Work work;
    double host_bytes = 0;  // of work.bytes, in the memory of the host
};
struct RunKernel {
    size_t call = 0;  // in Program::calls
};
// Begins the operation `sequence` of a group; messages count per pair of ranks.
struct BeginOperation {
    size_t group = 0;  // in Program::groups
    uint64_t sequence = 0;
    comm::Summary operation;
    double host_bytes = 0;  // that this rank contributes from the memory of the host
};
struct WaitForOperation {
    size_t group = 0;
    uint64_t sequence = 0;
    comm::Kind kind = comm::Kind::barrier;
};

// A copy between the device and the memory of the host, beside the kernels. Copies run one after another.
struct BeginCopy {
    uint64_t number = 0;
    double bytes = 0;
};
struct WaitForCopy {
    uint64_t number = 0;
};

struct Action {
    std::variant<RunKernel, BeginOperation, WaitForOperation, BeginCopy, WaitForCopy> what;
    size_t place = 0;   // in Program::places
    int64_t times = 1;  // repetitions in the step: one of several equal microbatches is listed
};

struct Program {
    struct Group {
        std::string name;
        std::vector<int> ranks;  // of the world
    };
    std::vector<Group> groups;
    std::vector<std::string> places;  // "forward of h.3", "optimizer"
    std::vector<KernelCall> calls;    // different ones; a step makes most of them many times
    std::vector<Action> actions;
    // Memory in use at the beginning and the end of each pass over a unit, in order. Passes that an action repeats are
    // listed once.
    struct Memory {
        size_t place = 0;
        MemoryByPurpose bytes;
        size_t action = 0;  // the first action behind it
    };
    std::vector<Memory> memory = {};

    const KernelCall* call_of(const Action& action) const {  // null: it runs no kernel
        const auto* run = std::get_if<RunKernel>(&action.what);
        return run == nullptr ? nullptr : &calls[run->call];
    }
    // Floating-point operations of all kernels, repetitions included.
    double flops() const;
};

// Calls of one kernel on problems of one shape.
struct KernelTotal {
    const char* kernel = "";
    int64_t calls = 0;
    kernels::Work work;  // of all calls together
};
// Totals of all actions, repetitions included, by descending FLOPs, then bytes.
std::vector<KernelTotal> kernel_totals(const Program& program);

// The first operation in which the programs of two ranks of one world differ, in kind or number, in a group of both
// ranks; "" when they agree. Each message sent must be the one received.
std::string first_difference(int rank, const Program& program, int other_rank, const Program& other);

}  // namespace tutti::rehearsal
