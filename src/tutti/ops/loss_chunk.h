// ops/loss_chunk.h: in what pieces the head and its loss are computed (ops/loss.cpp).
#pragma once

#include <algorithm>
#include <cstdint>

namespace tutti::ops {

// Rows of logits, of `row_bytes` each, that exist at a time: below 128 MiB, in chunks of equal size, whole 64s. For
// every chunk the head's weights are read (and packed, where they do not stay packed: ops/packed_weights.h) and its
// gradient is added to, so few chunks are fast ones.
inline int64_t loss_chunk_rows(int64_t rows, int64_t row_bytes) {
    constexpr int64_t kChunkBytes = 128 << 20;
    const int64_t fit = std::max<int64_t>(64, kChunkBytes / std::max<int64_t>(1, row_bytes));
    const int64_t chunks = std::max<int64_t>(1, (rows + fit - 1) / fit);
    return std::min(rows, ((rows + chunks - 1) / chunks + 63) / 64 * 64);
}

}  // namespace tutti::ops
