// kernels/cuda/slab_tile.h: tiles of bf16 rows in shared memory in the layout of Hopper's tensor copies and warp group
// products, products of such tiles, and positions in ring buffers of tiles.
#pragma once

#include "tutti/kernels/cuda/wgmma.h"

namespace tutti::kernels::cuda {

// A tile of kRows rows of kD bf16 in shared memory as columns of slabs, 64 elements wide: a row of a slab is 128 bytes
// whose eight 16-byte words are permuted by the row's number, at addresses that are multiples of 1024 (the 128-byte
// swizzle of CUtensorMap and of matrix descriptors). As stored, a tile can be a K-major operand (K along columns) or an
// N-major one (K along rows): PTX ISA 9.7.15.5.1.2, canonical layouts. CUTLASS has the same numbers:
// cute/atom/mma_traits_sm90_gmma.hpp (make_gmma_desc).
template <int kRows, int kD>
struct SlabTile {
    static_assert(kRows % 8 == 0 && kRows <= 256 && kD % 64 == 0);
    static constexpr int kSlabs = kD / 64;
    static constexpr uint32_t kSlabBytes = kRows * 128, kBytes = kSlabs * kSlabBytes;
    std::byte* data;

    // Starts copying rows [first, first + kRows) of a head: kBytes on the barrier.
    __device__ __forceinline__ void fetch(const CUtensorMap& map, Mbarrier& barrier, int b, int head, int first) const {
#pragma unroll
        for (int slab = 0; slab < kSlabs; ++slab)
            load_box(data + slab * kSlabBytes, map, barrier, 64 * slab, first, head, b);
    }

    // 9.7.15.5.1.2.2. Bits 0 to 13: address; 16 to 29: leading offset; 32 to 45: stride offset, all in 16 bytes; 62:
    // the 128-byte swizzle. The stride offset goes to the next eight rows, which lie along K when N-major.
    __device__ static __forceinline__ uint64_t descriptor(const std::byte* start, uint32_t leading) {
        return uint64_t{1} << 62 | uint64_t{1024 >> 4} << 32 | uint64_t{leading >> 4} << 16 |
               (shared_address(start) & 0x3ffff) >> 4;
    }
    // Rows from `row` on, a multiple of 8, columns [16 k, 16 k + 16): M or N along rows, K along columns. The leading
    // offset is not used; 1 by convention.
    __device__ __forceinline__ uint64_t k_major(int row, int k) const {
        return descriptor(data + k / 4 * kSlabBytes + row * 128 + k % 4 * 32, 16);
    }
    // Rows [16 k, 16 k + 16), all columns from a slab on: K along rows, N (or M) along columns. The leading offset goes
    // to the next 64 columns.
    __device__ __forceinline__ uint64_t n_major(int k, int slab = 0) const {
        return descriptor(data + slab * kSlabBytes + k * 16 * 128, kSlabBytes);
    }

    // Stores 16 rows of a warp, from `row` on, and the 64 columns of a slab, which are in the registers of left
    // operands.
    __device__ __forceinline__ void store(int row, int slab, const FragmentA (&columns)[4]) const {
        const int lane = static_cast<int>(threadIdx.x) % 32, of_lane = row + lane % 16;
#pragma unroll
        for (int k = 0; k < 4; ++k)
            store_matrices(data + slab * kSlabBytes + of_lane * 128 + ((2 * k + lane / 16) ^ of_lane % 8) * 16,
                           columns[k]);
    }
};

// Starts sums (64, kRows) = 64 rows of x, from `row` on, times the transposed tile y, as one committed group.
template <int kOwn, int kRows, int kD>
__device__ __forceinline__ void start_transposed(Accumulator (&sums)[kRows / 8], const SlabTile<kOwn, kD>& x, int row,
                                                 const SlabTile<kRows, kD>& y) {
    pin(sums);
    fence_registers();
#pragma unroll
    for (int k = 0; k < kD / 16; ++k) wgmma(sums, x.k_major(row, k), y.k_major(0, k), k > 0);
    commit_products();
}
// Likewise starts sums (64, kD) += p (64, 16 kSteps) from registers times 16 kSteps rows of the tile y, from `row` on,
// a multiple of 16.
template <int kSteps, int kRows, int kD>
__device__ __forceinline__ void start_product(Accumulator (&sums)[kD / 8], FragmentA (&p)[kSteps],
                                              const SlabTile<kRows, kD>& y, int row = 0) {
    pin(sums);
    pin(p);
    fence_registers();
#pragma unroll
    for (int k = 0; k < kSteps; ++k) wgmma(sums, p[k], y.n_major(row / 16 + k), true);
    commit_products();
}
// Likewise starts sums (64, 64) = 64 transposed columns of x, of its slab `of_x`, times 64 columns of y.
template <int kRows, int kX, int kY>
__device__ __forceinline__ void start_product_of_columns(Accumulator (&sums)[8], const SlabTile<kRows, kX>& x, int of_x,
                                                         const SlabTile<kRows, kY>& y, int of_y) {
    pin(sums);
    fence_registers();
#pragma unroll
    for (int k = 0; k < kRows / 16; ++k) wgmma_transposed(sums, x.n_major(k, of_x), y.n_major(k, of_y), k > 0);
    commit_products();
}

// Columns of sums, from `column` on, a multiple of 16, rounded to bf16, as left operands.
template <int kSteps, int kBlocks>
__device__ __forceinline__ void round_to(FragmentA (&p)[kSteps], const Accumulator (&sums)[kBlocks], int column = 0) {
#pragma unroll
    for (int k = 0; k < kSteps; ++k) round_to<bf16>(p[k], sums[column / 8 + 2 * k], sums[column / 8 + 2 * k + 1]);
}

// Position in a ring buffer: the stage, and the parity of the pass.
template <int kStages>
struct Turn {
    int stage = 0;
    uint32_t parity = 0;
    __device__ __forceinline__ void next() {
        if (++stage == kStages) {
            stage = 0;
            parity ^= 1;
        }
    }
};

// The dynamic shared memory from its first multiple of 1024 on.
__device__ __forceinline__ std::byte* slab_memory() {
    std::byte* const begin = dynamic_shared();
    return begin + (-shared_address(begin) & 1023);
}

}  // namespace tutti::kernels::cuda
