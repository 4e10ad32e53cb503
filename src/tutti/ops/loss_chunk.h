// ops/loss_chunk.h: in what pieces the head and its loss are computed (ops/loss.cpp).
#pragma once

#include <algorithm>
#include <cstdint>

namespace tutti::ops {

// Rows of logits, of `row_bytes` each, that exist at a time: at most `chunk_bytes` (KernelTable::loss_chunk_bytes), in
// chunks of equal size, whole 64s. For every chunk the head's weights are read (and packed, where they do not stay
// packed: ops/packed_weights.h) and its gradient is added to, so few chunks are fast ones.
inline int64_t loss_chunk_rows(int64_t rows, int64_t row_bytes, int64_t chunk_bytes) {
    const int64_t fit = std::max<int64_t>(64, chunk_bytes / std::max<int64_t>(1, row_bytes));
    const int64_t chunks = std::max<int64_t>(1, (rows + fit - 1) / fit);
    return std::min(rows, ((rows + chunks - 1) / chunks + 63) / 64 * 64);
}

}  // namespace tutti::ops
