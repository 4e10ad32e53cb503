// kernels/cpu/isa/pair_product_amx.h: products of bf16 pairs by tiles: tile_product() of the ISA `amx`. Included by
// cpu/isa.h only.
#pragma once

#include "tutti/kernels/cpu/isa/tiles_amx.h"

namespace tutti::kernels::TUTTI_ISA {

// R x V tiles of sums, at most 2 x 2, so that a tile of either operand is loaded once for two products. a_bytes is from
// one row to the next, which need not begin at a whole word; b_row and c_row are in words.
template <int R, int V>
void tile_block(const Pair* a, int64_t a_bytes, const Pair* b, int64_t b_row, float* c, int64_t c_row, int64_t K,
                bool add) {
    const int64_t b_bytes = b_row * 4, c_bytes = c_row * 4;
    float* const lower = c + kTileRows * c_row;
    if (add) {
        tile_load<0>(c, c_bytes);
        if constexpr (V == 2) tile_load<1>(c + kTileWords, c_bytes);
        if constexpr (R == 2) tile_load<2>(lower, c_bytes);
        if constexpr (R == 2 && V == 2) tile_load<3>(lower + kTileWords, c_bytes);
    } else {
        tile_zero<0>();
        if constexpr (V == 2) tile_zero<1>();
        if constexpr (R == 2) tile_zero<2>();
        if constexpr (R == 2 && V == 2) tile_zero<3>();
    }
    for (int64_t k = 0; k < K; k += kTileWords, a += kTileWords, b += kTileRows * b_row) {
        tile_load<4>(a, a_bytes);
        tile_load<6>(b, b_bytes);
        tile_dot<0, 4, 6>();
        if constexpr (V == 2) {
            tile_load<7>(b + kTileWords, b_bytes);
            tile_dot<1, 4, 7>();
        }
        if constexpr (R == 2) {
            tile_load<5>(reinterpret_cast<const char*>(a) + kTileRows * a_bytes, a_bytes);
            tile_dot<2, 5, 6>();
        }
        if constexpr (R == 2 && V == 2) tile_dot<3, 5, 7>();
    }
    tile_store<0>(c, c_bytes);
    if constexpr (V == 2) tile_store<1>(c + kTileWords, c_bytes);
    if constexpr (R == 2) tile_store<2>(lower, c_bytes);
    if constexpr (R == 2 && V == 2) tile_store<3>(lower + kTileWords, c_bytes);
}

template <int V>
void tile_rows(const Pair* a, int64_t a_row, const Pair* b, int64_t b_row, float* c, int64_t c_row, int64_t M,
               int64_t K, bool add) {
    int64_t m = 0;
    for (; m + 2 * kTileRows <= M; m += 2 * kTileRows)
        tile_block<2, V>(a + m * a_row, a_row * 4, b, b_row, c + m * c_row, c_row, K, add);
    if (m < M) tile_block<1, V>(a + m * a_row, a_row * 4, b, b_row, c + m * c_row, c_row, K, add);
}

// c (M, N) f32 [+]= a (M, K) b (K, N); M, N and K are multiples of 16. A row of b holds the pairs of two rows.
inline void pair_product(const Pair* a, int64_t a_row, const Pair* b, int64_t b_row, float* c, int64_t c_row, int64_t M,
                         int64_t N, int64_t K, bool add) {
    int64_t n = 0;
    for (; n + 2 * kTileWords <= N; n += 2 * kTileWords) tile_rows<2>(a, a_row, b + n, b_row, c + n, c_row, M, K, add);
    if (n < N) tile_rows<1>(a, a_row, b + n, b_row, c + n, c_row, M, K, add);
}

}  // namespace tutti::kernels::TUTTI_ISA
