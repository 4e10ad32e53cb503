// peers/peers.h: runs in the words of other trainers: Megatron-LM, torchtitan, nanotron, DeepSpeed, nanoGPT. One
// table of options for each (tables.h) writes a run and reads one.
//
// Versions, from their public sources: Megatron-LM, megatron/training/arguments.py of 307dcf3 (Core 0.14); torchtitan,
// torchtitan/config/job_config.py of 000204a (0.1); nanotron, src/nanotron/config of 6b2ff65, with the options of 0.4
// (recompute_layer, context_parallel_size) from memory; DeepSpeed, docs/_pages/config-json.md, and nanoGPT, train.py,
// both from memory.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tutti/spec/run_spec.h"

namespace tutti::peers {

enum class Peer { megatron, torchtitan, nanotron, deepspeed, nanogpt };
std::vector<std::string> names();
Peer named(const std::string& name);  // UsageError with the nearest

// A validated run of `ranks` ranks as the trainer's own text: arguments for a shell, TOML, YAML, JSON or Python. What
// its options cannot say is in comments at the top.
std::string emit(Peer peer, const spec::RunSpec& run, int ranks);

// An option of the trainer beside what says the same here: a key with the values that differ in name, or a sentence.
struct Option {
    std::string theirs, ours;
};
std::vector<Option> options_of(Peer peer);

struct TheirRun {
    std::vector<std::string> set;      // the run as "section.key=value" of a config
    int ranks = 0;                     // 0: the text does not say
    std::vector<std::string> ignored;  // known options that do not change time or memory, by name
    std::vector<std::string> unknown;  // others
    std::vector<std::string> notes;    // assumptions

    std::string preset() const;  // that `set` names a model by; "": none
};
// Reads a launch script, arguments or a config of the trainer. Of a script: variables with their values or defaults
// ("${TP:-8}"), arrays and line continuations; nothing is executed. UsageError naming the option and its value.
TheirRun read(Peer peer, std::string_view text, const std::string& source_name);

}  // namespace tutti::peers
