// parallel/apply.h: from the roles of parameters to what each rank holds of them and over which ranks their gradients
// are summed.
#pragma once

#include <vector>

#include "tutti/autograd/parameter.h"

namespace tutti::parallel {

// Rows of a vocabulary are held and cut in whole tiles of the kernels, the last one padded. Rows of logits then begin
// at multiples of 128 bytes in bf16: products over GPT-2's 50257 words would else leave a GPU's fast kernels.
inline constexpr int64_t kVocabularyGrain = 64;

// Sets Parameter::local, partial, copies, tensor_parallel and expert_parallel for `rank` of a mesh with all axes.
// UsageError, naming the parameter, when one cannot be cut so.
void apply(const std::vector<autograd::Parameter*>& parameters, const mesh::Mesh& mesh, int rank,
           const autograd::TensorParallel& tensor_parallel, const autograd::ExpertParallel& expert_parallel = {});

}  // namespace tutti::parallel
