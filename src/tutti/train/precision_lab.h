// train/precision_lab.h: measures the numbers that a run's matrix products multiply and what formats of few bits make
// of them, and finds the tensor whose rounding moves the loss. Both run on one rank: rounding does not depend on the
// layout (docs/precision.md).
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "tutti/engine/factories.h"
#include "tutti/report/precision.h"
#include "tutti/spec/run_spec.h"

namespace tutti::train {

struct LabOptions {
    spec::RunSpec run;  // one_rank_of() a validated run
    // Continue from the newest checkpoint below this directory; "": from the initial weights, or those of [model] hf.
    std::string checkpoints = {};
    int64_t steps = 1;  // >= 1; the last one is measured
    engine::Factories factories = {};
    bool force = false;  // start even if memory is short
    std::ostream* console = nullptr;
    bool terminal = false;
};

// What the layers multiply in the last step, before its update, by layer and factor: as the run does, in bf16 and f16,
// and under the recipes of 8-bit products whose scales follow from the tensor itself. x and dy of all microbatches; w
// once. The head's x and dy are inside of the loss and are left out. Throws as train() does.
report::PrecisionReading measure_precision(const LabOptions& options);

// A prefix of the tensors that products round, in the order in which a step first reads them.
struct RoundedPrefix {
    int64_t tensors = 0;
    std::string last;  // the last of these: "model.layers.3.mlp.up_proj.weight, x"; "": none
    double loss = 0;   // of the last step
    double moved = 0;  // from that without rounding
};

struct Blame {
    std::vector<RoundedPrefix> tried;  // ascending; the first rounds nothing, the last everything
    // Index in `tried` of the shortest one that moves the loss at least half as far as all do together; -1: the loss is
    // not moved.
    int64_t first = -1;
};

// Compares the loss of the run with that of the same run in f32 without a recipe: rounds x, w and dy of a prefix of the
// layers' products, as the run's recipe does or else to its compute type, and finds the prefix by bisection. The rest
// is f32, so that only what is rounded before products counts.
Blame blame(const LabOptions& options);

}  // namespace tutti::train
