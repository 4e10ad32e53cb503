// parallel/apply.h: from the roles of parameters to what each rank holds of them and over which ranks their gradients
// are summed.
#pragma once

#include <vector>

#include "tutti/autograd/parameter.h"

namespace tutti::parallel {

// Sets Parameter::local, partial and copies for `rank` of a mesh with all axes. With sequence parallelism the
// parameters between the tensor-parallel products see a part of the sequence on each rank. UsageError, naming the
// parameter, when one cannot be cut so.
void apply(const std::vector<autograd::Parameter*>& parameters, const mesh::Mesh& mesh, int rank,
           bool sequence_parallel);

}  // namespace tutti::parallel
