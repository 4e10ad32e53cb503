// kernels/cpu/isa/gemm_few_rows.h: c = a b^T with few rows of a: the products of token generation. b is read once, in
// place; memory bandwidth is the limit, and packing would read and write b again.
#pragma once

#include "tutti/kernels/cpu/fill.h"
#include "tutti/kernels/cpu/isa/loops.h"

namespace tutti::kernels::TUTTI_ISA {

// Rows of b to prefetch ahead: the hardware prefetcher starts anew at every row.
inline constexpr int64_t kRowsAhead = 8;

// sums (R, C), rows `row` apart = a (R, K) b (C, K)^T. Every element is one chain of additions over K, for any R and C.
template <int R, int C, class T>
[[gnu::always_inline]] inline void dot_rows(const T* a, int64_t a_row, const T* b, int64_t b_row, int64_t K,
                                            float* sums, int64_t row) {
    Vec sum[R][C];
#pragma GCC unroll 16
    for (int i = 0; i < R * C; ++i) sum[i / C][i % C] = zero();
    for_vectors(0, K, [&](int64_t k, auto part) {
        Vec right[C];
#pragma GCC unroll 4
        for (int j = 0; j < C; ++j) {
            right[j] = load(b + j * b_row + k, part);
            __builtin_prefetch(b + (j + kRowsAhead) * b_row + k, 0, 2);
        }
#pragma GCC unroll 4
        for (int i = 0; i < R; ++i) {
            const Vec left = load(a + i * a_row + k, part);
#pragma GCC unroll 4
            for (int j = 0; j < C; ++j) sum[i][j] = fma(left, right[j], sum[i][j]);
        }
    });
#pragma GCC unroll 16
    for (int i = 0; i < R * C; ++i) sums[i / C * row + i % C] = reduce_add(sum[i / C][i % C]);
}

template <int C, class T>
void dot_all_rows(const T* a, int64_t a_row, int64_t rows, const T* b, int64_t b_row, int64_t K, float* sums,
                  int64_t row) {
    constexpr int kTogether = kLanes == 16 ? 4 : 2;  // sums, and operands, in 32 registers or in 16
    int64_t i = 0;
    for (; i + kTogether <= rows; i += kTogether)
        dot_rows<kTogether, C>(a + i * a_row, a_row, b, b_row, K, sums + i * row, row);
    for (; i < rows; ++i) dot_rows<1, C>(a + i * a_row, a_row, b, b_row, K, sums + i * row, row);
}

// sums (M, columns), rows `row` apart = a (M, K) times rows [n, n + columns) of b (N, K).
template <class T>
void sum_few_rows(const Gemm& g, int64_t n, int64_t columns, float* sums, int64_t row) {
    const int64_t M = size(g.c, 0), K = size(g.a, 1), a_row = stride(g.a, 0), b_row = stride(g.b, 0);
    const T *a = g.a.as<const T>(), *b = g.b.as<const T>() + n * b_row;
    int64_t j = 0;
    for (; j + 4 <= columns; j += 4) dot_all_rows<4>(a, a_row, M, b + j * b_row, b_row, K, sums + j, row);
    for (; j < columns; ++j) dot_all_rows<1>(a, a_row, M, b + j * b_row, b_row, K, sums + j, row);
}

}  // namespace tutti::kernels::TUTTI_ISA
