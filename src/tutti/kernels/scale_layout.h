// kernels/scale_layout.h: where the divisors of the groups of a matrix of codes are, (R, C) of them: a row for each row
// of groups of the matrix as it is stored, whose columns the product sums over. The orders other than `rows` are those
// of cuBLASLt's scaling modes (CUDA 13, cuBLAS documentation, "Narrow Precision Data Types Usage").
#pragma once

#include "tutti/base/ceil_div.h"
#include "tutti/kernels/kernel_table.h"

namespace tutti::kernels {

// Divisors in memory, padding included.
constexpr int64_t scale_values(ScaleLayout layout, int64_t R, int64_t C) {
    switch (layout) {
        case ScaleLayout::rows: break;
        case ScaleLayout::columns: return round_up(R, 4) * C;
        case ScaleLayout::padded_rows: return R * round_up(C, 4);
        case ScaleLayout::tiles: return round_up(R, 128) * round_up(C, 4);
        case ScaleLayout::row_tiles: return round_up(R, 128) * 4 * C;
        case ScaleLayout::block_tiles: return 512 * R * C;
    }
    return R * C;
}

// A divisor is so many equal values, one after the other.
constexpr int64_t scale_copies(ScaleLayout layout) {
    return layout == ScaleLayout::row_tiles ? 4 : layout == ScaleLayout::block_tiles ? 512 : 1;
}

// Place of divisor (r, c), or of its first copy.
constexpr int64_t scale_place(ScaleLayout layout, int64_t r, int64_t c, int64_t R, int64_t C) {
    switch (layout) {
        case ScaleLayout::rows: break;
        case ScaleLayout::columns: return c * round_up(R, 4) + r;
        case ScaleLayout::padded_rows: return r * round_up(C, 4) + c;
        case ScaleLayout::tiles: {
            const int64_t tile = r / 128 * (round_up(C, 4) / 4) + c / 4;
            return tile * 512 + r % 32 * 16 + r % 128 / 32 * 4 + c % 4;
        }
        case ScaleLayout::row_tiles: return (r / 128 * C + c) * 512 + r % 32 * 16 + r % 128 / 32 * 4;
        case ScaleLayout::block_tiles: return (r * C + c) * 512;
    }
    return r * C + c;
}

}  // namespace tutti::kernels
