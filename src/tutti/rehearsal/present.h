// rehearsal/present.h: a rehearsal as text and as JSON: its memory, the kernel program of a block.
#pragma once

#include <string>

#include "tutti/base/json.h"
#include "tutti/rehearsal/rehearse.h"

namespace tutti::rehearsal {

// A line for each stage, from `first` on, of which `rehearsals` are those: "2 until step 20: train.seq_len = 16; peak
// 3.1 MiB, the largest". None of a run without stages.
std::vector<std::string> stage_lines(const spec::RunSpec& run, size_t first,
                                     const std::vector<const Rehearsal*>& rehearsals);
// The index of the rehearsal with the most memory.
size_t largest_of(const std::vector<const Rehearsal*>& rehearsals);

// The step in the order in which the rank runs it, one line per kernel and operation: shape, FLOPs, bytes. One block
// stands for all blocks, the first microbatch for all microbatches.
std::string render_program(const Rehearsal& rehearsal);
// The FLOPs of the step by problem, largest first. A product and the products of its two gradients have the same three
// sizes and share a line, as do the forward and backward of attention.
std::string render_flops(const Rehearsal& rehearsal);

// JSON documents. Bytes by purpose: {"weights": 1234, ...}.
Json to_json(const MemoryByPurpose& memory);
// A list of {"group", "size", "operation", "calls", "bytes", "sent"}.
Json to_json(const std::vector<parallel::GroupTraffic>& communication);
// "rank", "ranks", "machine", "peak_bytes", "peak_place", "memory", "largest", "offloaded_bytes", "reserved_bytes",
// "saved_bytes", "capacity_bytes" (null: not known), "fits", "flops", "communication".
Json to_json(const Rehearsal& rehearsal);
// The kernels of the step: a list of {"kernel", "shape", "calls", "flops", "bytes"}.
Json kernels_to_json(const Rehearsal& rehearsal);

}  // namespace tutti::rehearsal
