// comm/tree_reduce.h: the order of additions over ranks, which is the same in every backend, so that their results are
// equal bit for bit. Ranks [0, n) are the leaves of a binary tree that splits at the largest power of two below n:
// ((x0 + x1) + (x2 + x3)) + x4. A sum inside groups of a power of two, followed by a sum across them, equals the flat
// sum.
#pragma once

#include <span>

#include "tutti/base/dtype.h"
#include "tutti/comm/collective.h"

namespace tutti::comm {

// outputs[k][i] = reduction over r of inputs[r][i], for i in [begin, end) and every k; pointers are to element 0.
// 16-bit and f32 values add in f32 and are rounded once, to `output_type`: the input's type, or f32 for 16-bit input,
// or the reverse. f64, i32 and i64 add in their own type; Error for other types. An output may be one of the inputs.
// `ranks`: by input, the number of ranks whose sum it is, a whole subtree; empty: one each.
void tree_reduce(Reduce reduce, DType input_type, std::span<const void* const> inputs, DType output_type,
                 std::span<void* const> outputs, int64_t begin, int64_t end, std::span<const int> ranks = {});

// The type of partial sums: f32 for 16-bit values.
DType sum_type(DType dtype);

}  // namespace tutti::comm
