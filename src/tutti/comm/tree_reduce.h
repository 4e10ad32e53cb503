// comm/tree_reduce.h: the one order in which Tutti adds over ranks. Ranks [0, n) are the leaves of a binary tree that
// splits at the largest power of two below n: ((x0 + x1) + (x2 + x3)) + x4. Every engine adds along it, so engines
// agree bit for bit; and so do a flat sum and a sum inside groups of a power of two followed by a sum across them.
#pragma once

#include <span>

#include "tutti/base/dtype.h"
#include "tutti/comm/collective.h"

namespace tutti::comm {

// outputs[k][i] = reduction over r of inputs[r][i], for i in [begin, end): all ranks' inputs and one or more places
// that get the result, each given by its element 0. 16-bit and f32 values add in f32 and are rounded once, to
// `output_type` (the input's type; f32 of 16-bit inputs, or the reverse); f64, i32 and i64 in their own type. An output
// may be one of the inputs. `ranks`: how many ranks input r stands for, when it is the sum of a whole subtree; none
// given: one each.
void tree_reduce(Reduce reduce, DType input_type, std::span<const void* const> inputs, DType output_type,
                 std::span<void* const> outputs, int64_t begin, int64_t end, std::span<const int> ranks = {});

// What partial sums are kept in: f32 for 16-bit values.
DType sum_type(DType dtype);

}  // namespace tutti::comm
