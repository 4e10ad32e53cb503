// tests/cuda/cute/cute_tile.h: a tile in shared memory as CuTe of NVIDIA's CUTLASS lays it out and describes it to
// products of warp groups: kRows rows of kD bf16, swizzled by 128 bytes. In a file of its own, because CUDA's headers
// and the emulation declare the same names.
#pragma once

#include <cstdint>

namespace tutti::kernels {

template <int kRows, int kD>
struct CuteTile {
    // Offset in bytes of an element from the tile's begin, a multiple of 1024.
    static uint32_t offset(int row, int column);
    // Matrix descriptors of a tile at `address` of shared memory. K along columns: rows [64 block, 64 block + 64),
    // columns [16 k, 16 k + 16).
    static uint64_t k_major(uint32_t address, int block, int k);
    // K along rows: rows [16 k, 16 k + 16), and all columns, or the 64 of a slab.
    static uint64_t n_major(uint32_t address, int k);
    static uint64_t n_major(uint32_t address, int k, int slab);
};

}  // namespace tutti::kernels
