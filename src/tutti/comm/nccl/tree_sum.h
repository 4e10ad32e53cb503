// comm/nccl/tree_sum.h: tree_reduce.h on a GPU: the reduction of values that have arrived from all ranks, along the
// same tree, so that its bits are those of every other backend.
#pragma once

#include <cstdint>

#include "tutti/base/dtype.h"
#include "tutti/comm/collective.h"
#include "tutti/device/device.h"

namespace tutti::comm::nccl {

// Pieces aligned to words on every rank are added word by word if there are 2, 4 or 8 ranks. NCCL, too, copies messages
// by words, but byte by byte if an address at either end is not a multiple of 16 (2.30: reduceCopy in
// src/device/common_kernel.h).
inline constexpr int64_t kWordBytes = 16;

// Rank r's values: `own` for r = rank, else those at arrived + r * stride bytes.
struct RankValues {
    const void* own = nullptr;
    const std::byte* arrived = nullptr;
    int64_t stride = 0;
    int rank = 0, ranks = 1;  // at most 2^16
};

// y[i] = reduction over the ranks, for i in [0, count); `y` may be `own`. Types as in comm::tree_reduce; Error for
// other types.
void tree_sum(const Stream& stream, Reduce reduce, DType input_type, const RankValues& x, DType output_type, void* y,
              int64_t count);

}  // namespace tutti::comm::nccl
