// kernels/cuda/attention_tiles.h: tiles of rows of 16-bit elements in shared memory, and products of them, for the
// attention kernels on tensor cores. A row is kD elements, zeros beyond D; its 16-byte words are permuted by the row's
// number, so that the eight rows that ldmatrix reads together are in different banks.
#pragma once

#include "tutti/kernels/cuda/attention.h"
#include "tutti/kernels/cuda/tensor_core.h"

namespace tutti::kernels::cuda {

inline constexpr int kTensorWarps = 4, kTensorThreads = kTensorWarps * kWarp;

template <int kRows, int kD>
struct Tile {
    static constexpr int kElements = 8;            // of a word
    static constexpr int kWords = kD / kElements;  // of a row
    static constexpr size_t kBytes = size_t{kRows} * kWords * 16;
    std::byte* data;

    __device__ std::byte* word(int row, int word) const { return data + (row * kWords + (word ^ (row % 8))) * 16; }

    // Starts copying rows [first, first + kRows) of head h; zeros from row `end` and from column D on.
    template <class T>
    __device__ void fetch(const Heads<const T>& x, int b, int h, int first, int end, int D) const {
#pragma unroll 4
        for (int at = static_cast<int>(threadIdx.x); at < kRows * kWords; at += kTensorThreads) {
            const int row = at / kWords, w = at % kWords;
            const bool exists = first + row < end && w * kElements < D;
            copy_async(word(row, w), exists ? x.at(b, first + row, h) + w * kElements : x.data, exists);
        }
    }

    // Rows [row, row + 16), columns [16 k, 16 k + 16) as the left operand.
    __device__ void left(FragmentA& a, int row, int k) const {
        const int lane = static_cast<int>(threadIdx.x) % kWarp;
        load_matrices(a, word(row + lane % 16, 2 * k + lane / 16));
    }
    // The transposed of rows [row, row + 16), columns [16 k, 16 k + 16) as two right operands: columns of the product
    // are rows of the tile.
    __device__ void right_transposed(FragmentB (&b)[2], int row, int k) const {
        const int lane = static_cast<int>(threadIdx.x) % kWarp;
        uint32_t r[4];
        load_matrices(r, word(row + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
        b[0][0] = r[0], b[0][1] = r[1], b[1][0] = r[2], b[1][1] = r[3];
    }
    // Rows [16 k, 16 k + 16), columns [column, column + 16) as two right operands.
    __device__ void right(FragmentB (&b)[2], int k, int column) const {
        const int lane = static_cast<int>(threadIdx.x) % kWarp;
        uint32_t r[4];
        load_matrices_transposed(r, word(16 * k + lane % 16, column / 8 + lane / 16));
        b[0][0] = r[0], b[0][1] = r[1], b[1][0] = r[2], b[1][1] = r[3];
    }
};

// Accumulators of 16 rows and kColumns columns.
template <int kColumns>
using RowSums = Accumulator[kColumns / 8];

// A warp works on kBlocks blocks of 16 rows, which share each fragment of the other operand. Elements are of type T.

// sums (16, kRows) += 16 rows of x, from `row` on, times the transposed tile y; the next 16 rows for the next block.
template <class T, int kBlocks, int kOwn, int kRows, int kD>
__device__ __forceinline__ void multiply_transposed(RowSums<kRows> (&sums)[kBlocks], const Tile<kOwn, kD>& x, int row,
                                                    const Tile<kRows, kD>& y) {
#pragma unroll
    for (int k = 0; k < kD / 16; ++k) {
        FragmentA a[kBlocks];
#pragma unroll
        for (int i = 0; i < kBlocks; ++i) x.left(a[i], row + 16 * i, k);
#pragma unroll
        for (int n = 0; n < kRows / 16; ++n) {
            FragmentB b[2];
            y.right_transposed(b, 16 * n, k);
#pragma unroll
            for (int i = 0; i < kBlocks; ++i) {
                mma<T>(sums[i][2 * n], a[i], b[0]);
                mma<T>(sums[i][2 * n + 1], a[i], b[1]);
            }
        }
    }
}

// sums (16, kD) += p (16, kRows), rounded to T, times the tile y.
template <class T, int kBlocks, int kRows, int kD>
__device__ __forceinline__ void multiply(RowSums<kD> (&sums)[kBlocks], const RowSums<kRows> (&p)[kBlocks],
                                         const Tile<kRows, kD>& y) {
#pragma unroll
    for (int k = 0; k < kRows / 16; ++k) {
        FragmentA a[kBlocks];
#pragma unroll
        for (int i = 0; i < kBlocks; ++i) round_to<T>(a[i], p[i][2 * k], p[i][2 * k + 1]);
#pragma unroll
        for (int n = 0; n < kD / 16; ++n) {
            FragmentB b[2];
            y.right(b, k, 16 * n);
#pragma unroll
            for (int i = 0; i < kBlocks; ++i) {
                mma<T>(sums[i][2 * n], a[i], b[0]);
                mma<T>(sums[i][2 * n + 1], a[i], b[1]);
            }
        }
    }
}

// Rows `row` + l/4 and + 8 of sums, times their factors, to rows of head h below `end`.
template <int kD>
__device__ __forceinline__ void store_rows(const RowSums<kD>& sums, const float (&factor)[2], const Result& to, int b,
                                           int h, int row, int end, int D) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int r = row + lane / 4 + 8 * half;
        if (r >= end) continue;
        const int64_t place = to.rows.place(b, r, h) + 2 * (lane % 4);
#pragma unroll
        for (int n = 0; n < kD / 8; ++n)
            if (8 * n < D)
                to.store_pair(place + 8 * n, sums[n][2 * half] * factor[half], sums[n][2 * half + 1] * factor[half]);
    }
}

// Calls f with the width of a row in shared memory.
template <class F>
void with_tile_width(int D, F&& f) {
    if (D <= 64)
        f(std::integral_constant<int, 64>{});
    else if (D <= 128)
        f(std::integral_constant<int, 128>{});
    else
        f(std::integral_constant<int, 256>{});
}

}  // namespace tutti::kernels::cuda
