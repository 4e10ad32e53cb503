// train/peak.h: the rate of matrix products that this machine reaches now: the denominator of the MFU that a run prints.
// It changes no result, only a printed share.
#pragma once

#include "tutti/ops/context.h"

namespace tutti::train {

// FLOP/s of the best of several products of 768 x 768 matrices of type `compute`, measured for about `seconds`.
double measure_gemm_peak(ops::Context& ctx, DType compute, double seconds);

}  // namespace tutti::train
