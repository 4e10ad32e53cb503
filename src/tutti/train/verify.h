// train/verify.h: checks that a layout trains the same model as one rank. Both runs take the same steps side by side.
// In each, the losses and gradients of equal weights are compared; then one rank takes over the layout's gradients, and
// the weights after its update are compared. A difference is therefore that of one step: an update that magnifies
// rounding (the sign of a gradient that is nearly zero, codes, orthogonalised momentum) changes no later step.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "tutti/comm/launcher.h"
#include "tutti/engine/factories.h"
#include "tutti/spec/run_spec.h"

namespace tutti::train {

struct VerifyOptions {
    spec::RunSpec run;    // validated, without stages: a stage of a run (spec/stages.h) begins with its first step
    int ranks = 1;        // threads of this process, or the processes of `launch`
    comm::Launch launch;  // as in TrainOptions: only rank 0 has an outcome and a console
    int64_t steps = 3;
    engine::Factories factories = {};  // as in TrainOptions
    bool force = false;                // as in TrainOptions
    std::ostream* console = nullptr;
    bool terminal = false;
};

// One step of both runs. Differences are relative: |a - b| / |b| of losses, where b is one rank's, and of tensors in
// root mean squares. The scale of a gradient is the largest among the unit's matrices, or among its vectors: a gradient
// that is zero but for rounding (the bias of keys, which has no effect on the softmax; queries that see one key) has
// the rounding of its neighbours. The scale of a weight is its own, and at least lr, by which a step moves it.
struct VerifiedStep {
    int64_t step = 0;
    // Of losses and gradients: verify_bound(); if these differ by more, the most that rounding makes of them on one
    // rank, in 8 samples, or 40 where these are near, with each weight moved to a neighbour and another loss scale, at
    // most 0.25: a model may magnify rounding. Where gradients are rounded and blocks add over ranks, also how far the
    // layout's own gradients move with 8 other loss scales: the parts that ranks add may nearly cancel.
    double bound = 0;
    double rounding = 0;      // the most of these samples, also beyond 0.25; 0: none was needed
    double weight_bound = 0;  // update_bound()
    double loss = 0, one_rank_loss = 0;
    double loss_difference = 0, gradient_difference = 0, weight_difference = 0;  // the largest of all parameters
    std::string gradient, weight;                                                // names of these parameters

    bool within() const;
    // Not within the bound, but rounding alone moves one rank as far: neither right nor wrong is shown.
    bool undecided() const;
};

struct VerifyOutcome {
    std::vector<VerifiedStep> steps;
    bool equal = true;     // every loss, gradient and weight to the bit
    bool differs = false;  // on every rank: rank 0 has found a step that is not within its bound

    VerifiedStep worst() const;  // the largest difference of each kind
    bool within() const;         // every step
    bool undecided() const;      // a step is not within its bound, and every such step is undecided
};

// The largest difference that rounding may make between two layouts' losses and gradients of equal weights. Under data
// and pipeline parallelism only sums of gradients are added in another order: 1e-5 (docs/design.md, section 6), which
// also holds for f32 under any layout. Below f32 tensor and context parallelism add and round inside a block: about 20
// roundings, forward and backward, each of 2^-9 at most and independent, so 2^-9 sqrt(20 blocks). f16, and TF32
// in the factors of products, have 3 bits more: 2^-12.
// Gradients in bf16 are rounded for each of n microbatches, and for each of up to four sums over ranks and
// contributions of a tied matrix, in both runs: 2 (n + 4) roundings of independent signs, whose root mean square is a
// unit in the last place, at most 2^-7, by sqrt(12).
double verify_bound(const spec::RunSpec& run);
// The same of weights after an update with equal gradients, which does the same arithmetic on each element, or matrix:
// 1e-6. Gradients in bf16 on one rank round those of the layout: verify_bound().
double update_bound(const spec::RunSpec& run);

// The reason for which a right layout of `run` may be beyond the bound of `outcome`, and the key that excludes the
// reason; "": none. Rounding alone may move one rank as far. Below f32 a mixture's router takes another expert where
// rounding exchanges two scores that nearly tie. A token then contributes to the gradient of another expert, which few
// tokens reach: moe-tiny in bf16 under tp = 2 and ep = 2 differs by 0.1 in a gradient, in f32 by 1e-6. Codes of 8 bits
// of a head that ranks share are those of parts.
std::string reason_beyond_bound(const spec::RunSpec& run, const VerifyOutcome& outcome);

// The one-rank run of the same batch, weights and samples: no axis, no recompute, no offload.
spec::RunSpec one_rank_of(const spec::RunSpec& run);

// Rank 0 holds the model twice. No files are written. Throws as train() does, and Error when a step is not finite.
VerifyOutcome verify(const VerifyOptions& options);

}  // namespace tutti::train
