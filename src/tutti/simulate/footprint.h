// simulate/footprint.h: the memory of a rank by closed formulas, which propose layouts to a search. A layout that is
// shown is rehearsed instead (rehearsal/), which counts every allocation; runs of other systems are in published/.
#pragma once

#include "tutti/simulate/job.h"

namespace tutti::simulate {

// Bytes of the rank that holds the most.
struct Footprint {
    double weights = 0, gradients = 0, optimizer = 0;
    double activations = 0;  // that wait for their backward, and what one layer needs beside them
    double logits = 0;
    double gathered = 0;  // ZeRO-3: weights of the layers in use; and gradients that are being reduced
    double reserved = 0;  // libraries, communicators, fragmentation
    // Not part of the total: bytes in the memory of the host, and those of them that are activations of a layer and
    // microbatch.
    double offloaded = 0, offloaded_layer = 0;
    double total() const { return weights + gradients + optimizer + activations + logits + gathered + reserved; }
};

// A layout that has no layout_problem(). In fp32 and tf32 activations have 4 bytes too.
Footprint footprint(const Job& job);

// The parts of a footprint that depend on neither ZeRO, dp_replicate nor offload: jobs that differ in these alone can
// share them.
struct FootprintParts {
    // Activations of a microbatch in a layer.
    struct Layer {
        double input = 0;
        double kept = 0;      // until the backward
        double backward = 0;  // beside these, of the layer that runs backward
    };
    // The first or the last position of a pipeline.
    struct Stage {
        bool first = false, last = false;
        double layers = 0, held = 0;  // held: microbatches in flight
        double dense_layer = 0;       // values of a layer outside of experts
        double experts = 0;           // values of all experts
        double embedding = 0;         // values of the embedding or the head

        double waiting() const { return layers * held; }  // layers of one microbatch that wait for their backward
    };
    Layer layer;
    Stage first, last;
};
FootprintParts footprint_parts(const Job& job);
Footprint footprint(const Job& job, const FootprintParts& parts);

}  // namespace tutti::simulate
