// comm/tree_reduce.h: the one order of additions over ranks. Ranks [0, n) are the leaves of a binary tree that splits
// at the largest power of two below n: ((x0 + x1) + (x2 + x3)) + x4. Every backend adds along the tree, so backends
// agree bit for bit, and a flat sum equals a sum inside groups of a power of two followed by a sum across these groups.
#pragma once

#include <span>

#include "tutti/base/dtype.h"
#include "tutti/comm/collective.h"

namespace tutti::comm {

// outputs[k][i] = reduction over r of inputs[r][i], for i in [begin, end): the inputs of all ranks and one or more
// outputs, each given by its element 0. 16-bit and f32 values add in f32 and are rounded once, to `output_type` (the
// input's type; f32 for 16-bit inputs, or the reverse); f64, i32 and i64 add in their own type. An output may be one of
// the inputs. `ranks`: the number of ranks behind input r, when the input is the sum of a whole subtree; empty: one
// each.
void tree_reduce(Reduce reduce, DType input_type, std::span<const void* const> inputs, DType output_type,
                 std::span<void* const> outputs, int64_t begin, int64_t end, std::span<const int> ranks = {});

// The type of partial sums: f32 for 16-bit values.
DType sum_type(DType dtype);

}  // namespace tutti::comm
