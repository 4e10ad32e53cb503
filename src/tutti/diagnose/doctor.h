// diagnose/doctor.h: what this build and this machine have, and what will keep a run from working well, as plain data.
#pragma once

#include <cstdint>
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

}  // namespace tutti::diagnose
