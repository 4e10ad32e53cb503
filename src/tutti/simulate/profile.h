// simulate/profile.h: the measured speed of a machine: its kernels and its operations between ranks. `tutti bench
// calibrate` writes a profile, from which the kernels of a rehearsed step get their times.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tutti/base/json.h"
#include "tutti/comm/collective.h"
#include "tutti/kernels/work.h"

namespace tutti::simulate {

// Seconds of a call: per_call + per_flop * FLOPs + per_byte * bytes, none negative.
struct CallCost {
    double per_call = 0, per_flop = 0, per_byte = 0;
    double seconds(double flops, double bytes) const { return per_call + per_flop * flops + per_byte * bytes; }
};

struct Sample {
    double flops = 0, bytes = 0, seconds = 0;  // of one call
    double weight = 1;
};
// The cost with the least squared relative error over the samples.
CallCost fit_cost(const std::vector<Sample>& samples);

// Kernels of one compute type with so many threads of a rank, measured while all cores were busy.
struct KernelProfile {
    std::string compute;  // "bf16"
    int threads = 1;
    std::map<std::string, CallCost> costs;               // by entry of the kernel table
    std::map<std::string, std::vector<Sample>> samples;  // likewise: what the costs were fitted to
    double between_kernels = 0;                          // seconds of a rank for each kernel call, outside kernels
    double of_step = 0;                                  // and of each step
    double alone = 1;                                    // time of a kernel while all other cores idle, as a share

    // For an entry without measurements: the median time of the measured entries for as many bytes.
    double seconds(const std::string& kernel, const kernels::Work& work) const;
};

// An operation of a group of so many ranks: seconds of a core of each rank, by the bytes of the larger tensor.
struct OperationCost {
    comm::Kind kind = comm::Kind::barrier;
    int ranks = 2;
    CallCost cost;
};

struct MachineProfile {
    std::string machine;  // "AMD EPYC 9R14, 2 cores, avx512_bf16"
    int cores = 1;
    std::vector<KernelProfile> kernels;
    std::vector<OperationCost> operations;

    // The nearest number of threads of this compute type. UsageError when none was measured.
    const KernelProfile& kernels_of(const std::string& compute, int threads) const;
    // The nearest number of ranks of this kind.
    double operation_seconds(comm::Kind kind, int ranks, double bytes) const;
};

Json to_json(const MachineProfile& profile);
// DataError with the file and the place when the text is no profile.
MachineProfile read_profile(const std::string& path);

// ---- calibrate.cpp ----

// Measures the machine that this process runs on.
// Trains small models of several shapes for a few steps in each compute type and with each number of threads, on as
// many ranks as keep all cores busy, and times every kernel; then times the operations of groups of 2, 4 and 8 threads.
// Takes one to two minutes. `progress` gets the name of each measurement.
MachineProfile calibrate(const std::function<void(const std::string&)>& progress);

}  // namespace tutti::simulate
