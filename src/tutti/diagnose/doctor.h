// diagnose/doctor.h: what this build and this machine have, and what will keep a run from working well, as plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "tutti/device/cuda/cuda_device.h"

namespace tutti::diagnose {

// For programs; monostate: there is none, or it is unknown.
using FactValue =
    std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<std::string>, std::vector<Gpu>>;

struct Fact {
    std::string key, label, text;  // text: for people
    FactValue value;
};

struct FactSection {
    std::string key, title;
    std::vector<Fact> facts;
};

struct MachineFacts {
    std::vector<FactSection> sections;  // build, processor, gpu, memory, limits, disk
    std::vector<std::string> warnings;  // slower or riskier than need be
    std::vector<std::string> problems;  // training cannot work
};

// Looks at the build, the host, its GPUs and the working directory, where it writes and removes a small file.
MachineFacts examine_machine();

// What the host lets this process have, read from /proc, /sys and the limits.
//
std::optional<double> cgroup_cpu_limit();  // cores; nullopt: none
std::vector<std::string> cpu_features();   // of those that Tutti or its GEMM engine uses: "avx2", "amx_bf16"

// nullopt: a small file in `directory` could be written, fsynced, renamed and removed, and its directory fsynced; else
// what failed.
std::optional<std::string> fsync_problem(const std::string& directory);

}  // namespace tutti::diagnose
