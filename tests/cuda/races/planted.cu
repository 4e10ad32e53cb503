#include "tests/cuda/races/planted.h"
#include "tutti/device/cuda/launch.h"
#include "tutti/kernels/cuda/slab_tile.h"
#include "tutti/kernels/testing/cuda_place.h"

namespace tutti::kernels {

namespace {

struct Row {
    int at[64];
};

__global__ void rounds(int* x, Plant plant) {
    Row& row = block_shared<Row>();
    const unsigned thread = threadIdx.x;
    for (int round = 0; round < 3; ++round) {
        row.at[thread] = round;
        if (plant == Plant::syncwarp)
            __syncwarp();  // orders neighbours in a warp, and the two warps not
        else
            __syncthreads();
        x[64 * blockIdx.x + thread] += row.at[(thread + 1) % 64] - round;
        if (plant != Plant::barrier) __syncthreads();
    }
    if (thread == 0) x[128 + (plant == Plant::blocks ? 0 : blockIdx.x)] = 7;
}

__global__ void load(const std::byte* from, uint4* to) { *to = *reinterpret_cast<const uint4*>(from); }

using Tile = cuda::SlabTile<64, 64>;
const Grid kWarpGroupAlone{.blocks = dim3(1), .threads = dim3(cuda::kWarpGroup), .shared_bytes = Tile::kBytes + 1023};

__device__ void fill(const Tile& tile) {
    for (uint32_t at = threadIdx.x * 16; at < Tile::kBytes; at += cuda::kWarpGroup * 16)
        cuda::store_word(*reinterpret_cast<float4*>(tile.data + at), {});
}

__global__ void unpublished(float* x, bool by_product) {
    const Tile tile{cuda::slab_memory()};
    fill(tile);
    __syncthreads();
    if (by_product) {
        cuda::Accumulator sums[8] = {};
        cuda::start_transposed(sums, tile, 0, tile);
        cuda::wait_for_products<0>(sums);
    } else if (threadIdx.x == 0) {
        cuda::copy_out(x, tile.data, 16, false);
        cuda::wait_until_written();
    }
}

__global__ void early(float* x, Registers registers) {
    const Tile tile{cuda::slab_memory()};
    fill(tile);
    cuda::publish_shared();
    __syncthreads();
    cuda::Accumulator sums[8] = {};
    cuda::FragmentA a[1] = {};
    cuda::start_product(sums, a, tile);
    if (registers == Registers::operand) a[0][0] = 1;
    if (registers == Registers::sums) x[threadIdx.x] = sums[0][0];
    cuda::wait_for_products<0>(sums);
    x[threadIdx.x] = sums[0][0];
}

template <class Body>
void with_array(size_t bytes, const Body& body) {
    const Place& place = cuda_place();
    std::byte* const x = place.arrays->take(bytes);
    try {
        body(place.stream, x);
        place.wait();
    } catch (...) {
        place.arrays->give_back(x);
        throw;
    }
    place.arrays->give_back(x);
}

}  // namespace

void run_planted(Plant plant) {
    with_array(130 * sizeof(int), [&](const Stream& stream, std::byte* x) {
        launch(rounds, {.blocks = dim3(2), .threads = dim3(64)}, stream, reinterpret_cast<int*>(x), plant);
    });
}

void read_unpublished(bool by_product) {
    with_array(64, [&](const Stream& stream, std::byte* x) {
        launch(unpublished, kWarpGroupAlone, stream, reinterpret_cast<float*>(x), by_product);
    });
}

void use_registers(Registers early_ones) {
    with_array(cuda::kWarpGroup * sizeof(float), [&](const Stream& stream, std::byte* x) {
        launch(early, kWarpGroupAlone, stream, reinterpret_cast<float*>(x), early_ones);
    });
}

void load_word(ptrdiff_t offset) {
    with_array(64, [&](const Stream& stream, std::byte* x) {
        launch(load, {.blocks = dim3(1), .threads = dim3(1)}, stream, static_cast<const std::byte*>(x + offset),
               reinterpret_cast<uint4*>(x + 32));
    });
}

}  // namespace tutti::kernels
