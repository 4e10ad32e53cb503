// planner/peers.h: runs in the words of other trainers: Megatron-LM, torchtitan, nanotron, DeepSpeed, nanoGPT. One
// table of options for each (peer_tables.h) writes a run and reads one.
//
// Versions, from their public sources: Megatron-LM, megatron/training/arguments.py of 307dcf3 (Core 0.14); torchtitan,
// torchtitan/config/job_config.py of 000204a (0.1); nanotron, src/nanotron/config of 6b2ff65, with the options of 0.4
// (recompute_layer, context_parallel_size) from memory; DeepSpeed, docs/_pages/config-json.md, and nanoGPT, train.py,
// both from memory.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/json.h"
#include "tutti/planner/request.h"
#include "tutti/published/memory.h"
#include "tutti/spec/run_spec.h"

namespace tutti::planner {

enum class Peer { megatron, torchtitan, nanotron, deepspeed, nanogpt };
std::vector<std::string> peer_names();
Peer peer_named(const std::string& name);  // UsageError with the nearest

// What the trainer can run: a search for it keeps to these.
void keep_to(Limits& limits, Peer peer);

// A validated run of `ranks` ranks as the trainer's own text: arguments for a shell, TOML, YAML, JSON or Python. What
// its options cannot say is in comments at the top.
std::string emit_for(Peer peer, const spec::RunSpec& run, int ranks);

// An option of the trainer beside what says the same here: a key with the values that differ in name, or a sentence.
struct PeerOption {
    std::string theirs, ours;
};
std::vector<PeerOption> options_of(Peer peer);

struct PeerRun {
    std::vector<std::string> set;      // the run as "section.key=value" of a config
    int ranks = 0;                     // 0: the text does not say
    std::vector<std::string> ignored;  // known options that do not change time or memory, by name
    std::vector<std::string> unknown;  // others
    std::vector<std::string> notes;    // assumptions

    bool has_preset() const;  // `set` names a model by a preset
};
// Reads a launch script, arguments or a config of the trainer. Of a script: variables with their values or defaults
// ("${TP:-8}"), arrays and line continuations; nothing is executed. UsageError naming the option and its value.
PeerRun read_peer(Peer peer, std::string_view text, const std::string& source_name);

// The memory of a rank if the trainer itself ran the layout (published/memory.h), and how far this forecast was from
// its published rows (published::calibration_runs()).
struct PeerMemory {
    std::string system;  // of whose programs the counts are: "megatron-core"
    double bytes = 0;
    published::MemoryErrors errors;
};
// Nothing for a trainer, or a model, that published/ does not tell.
std::optional<PeerMemory> memory_of(Peer peer, const Request& request, const spec::RunSpec& run);
// One line, beside the bytes of this system for the same layout.
std::string render(const PeerMemory& memory, double ours);
Json to_json(const PeerMemory& memory, double ours);

}  // namespace tutti::planner
