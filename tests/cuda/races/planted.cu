#include "tests/cuda/races/planted.h"
#include "tutti/device/cuda/launch.h"
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

}  // namespace

void run_planted(Plant plant) {
    const Place& place = cuda_place();
    std::byte* const x = place.arrays->take(130 * sizeof(int));
    launch(rounds, {.blocks = dim3(2), .threads = dim3(64)}, place.stream, reinterpret_cast<int*>(x), plant);
    place.wait();
    place.arrays->give_back(x);
}

void load_word(ptrdiff_t offset) {
    const Place& place = cuda_place();
    std::byte* const x = place.arrays->take(64);
    launch(load, {.blocks = dim3(1), .threads = dim3(1)}, place.stream, static_cast<const std::byte*>(x + offset),
           reinterpret_cast<uint4*>(x + 32));
    place.wait();
    place.arrays->give_back(x);
}

}  // namespace tutti::kernels
