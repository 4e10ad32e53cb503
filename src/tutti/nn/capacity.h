// nn/capacity.h: a mixture of experts with a limit on what an expert takes of a microbatch (Lepikhin et al. 2020):
// which choices are dropped.
#pragma once

#include <vector>

#include "tutti/nn/batch.h"
#include "tutti/ops/ops.h"
#include "tutti/spec/model_spec.h"

namespace tutti::nn {

// Sets the choices (N, k) that exceed spec.capacity_factor to -1 and returns their number; row i is row first_row + i
// of batch.tokens. All ranks of batch.routing.microbatch decide together, so that no layout drops others. Collective
// over them.
int64_t drop_beyond_capacity(ops::Context& ctx, const spec::MixtureSpec& spec, const Batch& batch,
                             const Tensor& weights, int64_t first_row, std::vector<int32_t>& choices);

}  // namespace tutti::nn
