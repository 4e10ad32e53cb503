// simulate/footprint.h: the memory of a rank by closed formulas, for searches and for runs of other systems. A run of
// this system is rehearsed instead (rehearsal/), which counts every allocation.
#pragma once

#include "tutti/simulate/job.h"

namespace tutti::simulate {

// Bytes of the rank that holds the most.
struct Footprint {
    double weights = 0, gradients = 0, optimizer = 0;
    double activations = 0;  // that wait for their backward, and what one layer needs beside them
    double logits = 0;
    double gathered = 0;  // ZeRO-3: weights of the layers in use; of this system also gradients that are being reduced
    double reserved = 0;  // libraries, communicators, fragmentation
    // Not part of the total: bytes in the memory of the host, and those of them that are activations of a layer and
    // microbatch.
    double offloaded = 0, offloaded_layer = 0;
    double total() const { return weights + gradients + optimizer + activations + logits + gathered + reserved; }
};

// A layout that has no layout_problem(). In fp32 and tf32 activations are of 4 bytes too.
Footprint footprint(const Job& job);

}  // namespace tutti::simulate
