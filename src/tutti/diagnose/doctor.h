// diagnose/doctor.h: facts about this build and this machine, and the problems that keep a run from working well, as
// plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "tutti/base/units.h"
#include "tutti/device/gpu.h"

namespace tutti::diagnose {

// The value for programs; monostate: none, or unknown.
using FactValue =
    std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<std::string>, std::vector<Gpu>>;

struct Fact {
    std::string key, label, text;  // text: for people
    FactValue value;
};

struct FactSection {
    std::string key, title;
    std::vector<Fact> facts = {};

    void add(Fact fact) { facts.push_back(std::move(fact)); }
    void add_text(const char* fact, const char* label, const std::string& text) { add({fact, label, text, text}); }
    void add_bytes(const char* fact, const char* label, int64_t bytes) {
        add({fact, label, format_bytes(bytes), bytes});
    }
};

struct MachineFacts {
    std::vector<FactSection> sections;  // build, processor, gpu, memory, limits, disk
    std::vector<std::string> warnings;  // training is slower or riskier than necessary
    std::vector<std::string> problems;  // training cannot work
};

// Examines the build, the host, its GPUs and the working directory, where it writes and removes a small file.
MachineFacts examine_machine();

// Writes, fsyncs, renames and removes a small file in `directory` and fsyncs the directory. The step that failed;
// nullopt: none.
std::optional<std::string> fsync_problem(const std::string& directory);

}  // namespace tutti::diagnose
