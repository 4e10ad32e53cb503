// kernels/cpu/isa/tile_product.h: products of small matrices that lie in the caches: the building block of attention.
// Elements are floats or pairs of bf16 (pairs_avx512.h): one word per element either way.
//
// c (M, N) f32 [+]= a (M, K) b (K, N): words of `a` are broadcast, so `a` may have any strides; rows of `b` and `c` are
// read as vectors, so N is a multiple of kLanes: callers pad with zeros. Where pairs go through tiles (kTiles), `a` has
// step 1, and M, N and K are multiples of kUnit<Pair>.
#pragma once

#include "tutti/kernels/cpu/isa/loops.h"

namespace tutti::kernels::TUTTI_ISA {

template <class E>
struct Left {
    const E* data;
    int64_t row, step;  // in words: to the next row, to the next k
};
template <class E>
struct Right {
    const E* data;
    int64_t step;
};
struct Product {
    float* data;
    int64_t row;
};

// Sizes of products of such words are multiples of this.
template <class E>
inline constexpr int64_t kUnit = 1;
template <>
inline constexpr int64_t kUnit<Pair> = kTiles ? 16 : 1;

// Sums of one block: 24 of 32 registers, 12 of 16. Wide rather than tall: six words to broadcast per four vectors keep
// the loads (10) well below the multiply-adds (24).
inline constexpr int kSums = kLanes == 16 ? 24 : 12;
inline constexpr int kVectors = kLanes == 16 ? 4 : 2;

[[gnu::always_inline]] inline Vec multiply_add(Vec a, Vec b, Vec sum, const float*) { return fma(a, b, sum); }
[[gnu::always_inline]] inline Vec multiply_add(Vec a, Vec b, Vec sum, const Pair*) { return dot_pairs(a, b, sum); }

// Keeps the compiler from computing the addresses of all rows ahead of the sums, which takes more registers than there
// are and 50 cycles per block.
template <class E>
[[gnu::always_inline]] inline E* hidden(E* p) {
    asm("" : "+r"(p));
    return p;
}

template <int R, int V, class E>
[[gnu::always_inline]] inline void block(Left<E> a, Right<E> b, Product c, int64_t K, bool add) {
    Vec sum[R][V];
    const float* before = c.data;
#pragma GCC unroll 24
    for (int r = 0; r < R; ++r, before = hidden(before + c.row))
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) sum[r][v] = add ? load(before + v * kLanes, Full{}) : zero();
    for (int64_t k = 0; k < K; ++k) {
        Vec right[V];
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) right[v] = load(b.data + v * kLanes, Full{});
#pragma GCC unroll 24
        for (int r = 0; r < R; ++r) {
            const Vec left = broadcast(a.data[r * a.row]);
#pragma GCC unroll 4
            for (int v = 0; v < V; ++v) sum[r][v] = multiply_add(left, right[v], sum[r][v], a.data);
        }
        a.data += a.step;
        b.data += b.step;
    }
    float* after = c.data;
#pragma GCC unroll 24
    for (int r = 0; r < R; ++r, after = hidden(after + c.row))
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) store(sum[r][v], after + v * kLanes, Full{});
}

// The largest power of two below n.
constexpr int power_below(int n) {
    int power = 1;
    while (2 * power < n) power *= 2;
    return power;
}

// Blocks of R rows; the remaining rows in blocks of powers of two.
template <int R, int V, class E>
[[gnu::noinline]] void block_rows(Left<E> a, Right<E> b, Product c, int64_t M, int64_t K, bool add) {
    for (; M >= R; M -= R, a.data += R * a.row, c.data += R * c.row) block<R, V>(a, b, c, K, add);
    if constexpr (R > 1)
        if (M > 0) block_rows<power_below(R), V>(a, b, c, M, K, add);
}

template <int V, class E>
void block_columns(Left<E> a, Right<E> b, Product c, int64_t M, int64_t vectors, int64_t K, bool add) {
    int64_t v = 0;
    for (; v + V <= vectors; v += V)
        block_rows<kSums / V, V>(a, Right<E>{b.data + v * kLanes, b.step}, Product{c.data + v * kLanes, c.row}, M, K,
                                 add);
    if constexpr (V > 1)
        if (v < vectors)
            block_columns<V / 2>(a, Right<E>{b.data + v * kLanes, b.step}, Product{c.data + v * kLanes, c.row}, M,
                                 vectors - v, K, add);
}

template <class E>
void tile_product(Left<E> a, Right<E> b, Product c, int64_t M, int64_t N, int64_t K, bool add) {
    if constexpr (kUnit < E >> 1)
        pair_product(a.data, a.row, b.data, b.step, c.data, c.row, M, N, K, add);
    else
        block_columns<kVectors>(a, b, c, M, N / kLanes, K, add);
}

// y[column * y_row + row] = x[row * x_row + column] for words of any type.
inline void transpose_words(const uint32_t* x, int64_t x_row, int64_t rows, int64_t columns, uint32_t* y,
                            int64_t y_row) {
    int64_t r = 0;
    for (; r + kLanes <= rows; r += kLanes) {
        int64_t c = 0;
        for (; c + kLanes <= columns; c += kLanes) {
            Words w[kLanes];
#pragma GCC unroll 16
            for (int i = 0; i < kLanes; ++i) w[i] = load_words(x + (r + i) * x_row + c);
            transpose_square(w);
#pragma GCC unroll 16
            for (int i = 0; i < kLanes; ++i) store_words(w[i], y + (c + i) * y_row + r);
        }
        for (; c < columns; ++c)
            for (int64_t i = r; i < r + kLanes; ++i) y[c * y_row + i] = x[i * x_row + c];
    }
    for (; r + 4 <= rows; r += 4) {
        int64_t c = 0;
        for (; c + kLanes <= columns; c += kLanes) {
            Words w[4];
            for (int i = 0; i < 4; ++i) w[i] = load_words(x + (r + i) * x_row + c);
            transpose_groups(w);
            uint32_t lanes[4][kLanes];
            for (int i = 0; i < 4; ++i) store_words(w[i], lanes[i]);
            for (int64_t k = 0; k < kLanes; ++k)
                __builtin_memcpy(y + (c + k) * y_row + r, lanes[k % 4] + k / 4 * 4, 4 * sizeof(uint32_t));
        }
        for (; c < columns; ++c)
            for (int64_t i = r; i < r + 4; ++i) y[c * y_row + i] = x[i * x_row + c];
    }
    for (; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c) y[c * y_row + r] = x[r * x_row + c];
}

inline int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// How elements enter a product, and how many of them are in one word.
template <class T>
struct Operand {
    using Word = float;
    static constexpr int64_t kPack = 1;
    static int64_t words(int64_t n) { return n; }   // of n elements along the summed dim
    static int64_t height(int64_t n) { return n; }  // of n rows of a left operand
};
template <bool pairs>
struct Bf16Operand : Operand<float> {};
template <>
struct Bf16Operand<true> {
    using Word = Pair;
    static constexpr int64_t kPack = 2;
    static int64_t words(int64_t n) { return round_up((n + 1) / 2, kUnit<Pair>); }
    static int64_t height(int64_t n) { return round_up(n, kUnit<Pair>); }
};
template <>
struct Operand<bf16> : Bf16Operand<kFastPairs> {};

}  // namespace tutti::kernels::TUTTI_ISA
