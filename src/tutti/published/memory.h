// published/memory.h: the memory of a rank of another system, by its layers and the traits of its software. Our own
// runs are rehearsed instead (rehearsal/), which counts every allocation.
#pragma once

#include <string>
#include <vector>

#include "tutti/published/run.h"

namespace tutti::published {

// Bytes of the rank that holds the most: the first or the last position of the pipeline.
struct Memory {
    double weights = 0, gradients = 0, optimizer = 0;
    double activations = 0;  // that wait for their backward, and what one layer needs beside them
    double logits = 0;
    double gathered = 0;  // ZeRO-3: weights of the layers in use
    double reserved = 0;
    double total() const { return weights + gradients + optimizer + activations + logits + gathered + reserved; }
};
Memory memory(const PublishedRun& run);

// How far memory() is from measured rows: |memory / measured - 1|, and the median of memory / measured - 1. `software`:
// rows of this name of traits (traits.h), or "": all. Rows with a problem or with guessed sizes take no part.
struct MemoryErrors {
    int rows = 0;
    double mean = 0, median = 0, bias = 0;
};
MemoryErrors memory_errors(const std::vector<PublishedRun>& runs, const std::string& software = "");

// The contents of a pipeline stage that is cut by cost.
struct Stage {
    int layers = 0, blocks = 0;  // blocks: the layers and the embedding, last norm, head, cast and loss
    bool head = false;
};
// nanotron's build_model(): blocks go to stages in order, and the block with which the cost so far exceeds the share of
// the stages until here is the last one of its stage. Costs are parameters of layers and of the head; others are free.
std::vector<Stage> stages_by_cost(const Model& model, int pp);

// Why the system refuses the layout, or none can exist: "tp * cp * pp = 16 exceeds 8 ranks"; "".
std::string layout_problem(const PublishedRun& run);

}  // namespace tutti::published
