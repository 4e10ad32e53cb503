// train/verify.h: does this layout train the same model as one rank? Both take the same steps side by side; every loss,
// gradient and weight is compared.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "tutti/comm/launcher.h"
#include "tutti/spec/run_spec.h"

namespace tutti::train {

struct VerifyOptions {
    spec::RunSpec run;    // validated
    int ranks = 1;        // threads of this process, or what `launch` started
    comm::Launch launch;  // as in TrainOptions: only rank 0 has an outcome and a console
    int64_t steps = 3;
    bool force = false;  // as in TrainOptions
    std::ostream* console = nullptr;
    bool terminal = false;
};

// The two of one step. Differences are relative: of losses |a - b| / |b|, of tensors |a - b| / |b| in L2 norms, b being
// one rank's; zero norms compare equal with zero only. Not compared are weights whose gradient was zero within rounding
// in some step: not equal, and both layouts' below 2^-22 of the tensor's largest. AdamW divides a gradient by its size
// and makes whole updates of such noise (GPT-2's bias of keys, which softmax does not see).
struct VerifiedStep {
    int64_t step = 0;
    int64_t left_out = 0;  // weights that are not compared, for the reason above
    double bound = 0;      // verify_bound()
    double loss = 0, one_rank_loss = 0;
    double loss_difference = 0, gradient_difference = 0, weight_difference = 0;  // the largest of all parameters
    std::string gradient, weight;                                                // whose those are

    bool within() const;
};

struct VerifyOutcome {
    std::vector<VerifiedStep> steps;
    bool equal = true;  // every loss, gradient and weight to the bit

    VerifiedStep worst() const;  // the largest difference of each kind
    bool within() const;         // every step
};

// What rounding may make of one run under two layouts. Step 1 starts from equal weights, and with data parallelism only
// sums of gradients are added in another order: 1e-5 (docs/design.md, section 6). So it stays in f32, under any layout.
// In bf16 such a sum may later round a weight to its other neighbour, after which every rounding behind it may fall
// otherwise: about 20 in a block, forward and backward, each of 2^-9 at most and independent, so 2^-9 sqrt(20 blocks).
// Tensor and context parallelism add and round inside a block, so theirs is this bound from step 1 on. In TF32, which
// rounds the factors of products to 3 bits more, 2^-12.
double verify_bound(const spec::RunSpec& run, int64_t step);

// The one-rank run of the same batch, weights and samples: no axis, no recompute, no offload.
spec::RunSpec one_rank_of(const spec::RunSpec& run);

// Holds the model twice on rank 0. Nothing is written. Throws as train() does, and Error when a step is not finite.
VerifyOutcome verify(const VerifyOptions& options);

}  // namespace tutti::train
