// planner/peers.h: plans for other trainers: what a search keeps to, and the memory that the trainer itself needs.
#pragma once

#include <optional>
#include <string>

#include "tutti/base/json.h"
#include "tutti/peers/peers.h"
#include "tutti/planner/request.h"
#include "tutti/published/memory.h"

namespace tutti::planner {

using peers::Peer;

// What the trainer can run: a search for it keeps to these.
void keep_to(Limits& limits, Peer peer);

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
