// parallel/apply.h: from the role of each parameter to the part that each rank holds and the ranks over which the
// gradient is summed.
#pragma once

#include <vector>

#include "tutti/autograd/parameter.h"

namespace tutti::parallel {

// A vocabulary is cut in whole tiles of the kernels, with the last tile padded. Rows of logits then begin at multiples
// of 128 bytes in bf16: products over GPT-2's 50257 words would otherwise not use a GPU's fast kernels.
inline constexpr int64_t kVocabularyGrain = 64;

// The part of a rank of the world, by the role of the parameter.
mesh::Part part_of(const autograd::Parameter& parameter, const mesh::Mesh& mesh, int rank);

// Sets Parameter::local, partial, copies, tensor_parallel and expert_parallel for `rank` of a mesh with all axes.
// UsageError, naming the parameter, when a parameter cannot be cut this way.
void apply(const std::vector<autograd::Parameter*>& parameters, const mesh::Mesh& mesh, int rank,
           const autograd::TensorParallel& tensor_parallel, const autograd::ExpertParallel& expert_parallel = {});

}  // namespace tutti::parallel
