// device/cuda/launch.h: the language of kernels beside the runtime: launch() instead of <<<...>>>, so that any C++
// compiler can read a .cu file, and a block's shared memory by type. For kernels/cuda and comm/nccl only.
#pragma once

#include <cstddef>
#include <tuple>
#include <utility>

#include "tutti/device/cuda/runtime.h"

namespace tutti {

struct Grid {
    dim3 blocks;
    dim3 threads;
    size_t shared_bytes = 0;   // of dynamic_shared()
    bool blocks_wait = false;  // for blocks with smaller indices; the emulation then runs several side by side
};

#ifndef TUTTI_CUDA_EMULATED

// The type of a kernel's parameter `const T __grid_constant__ name`, which all threads read in one place.
template <class T>
using GridConstant = T;

// Lets a kernel have this much dynamic shared memory on the current GPU. Never lowers the limit: another thread may be
// about to launch the same kernel with more.
void allow_shared(const void* kernel, size_t bytes);

// Queues kernel(arguments...). Throws when the launch itself is refused; an error inside shows at a later call.
template <class... P, class... A>
void launch(void (*kernel)(P...), const Grid& grid, const Stream& stream, const A&... arguments) {
    const auto* symbol = reinterpret_cast<const void*>(kernel);
    if (grid.shared_bytes > 0) allow_shared(symbol, grid.shared_bytes);
    std::tuple<P...> values(arguments...);
    std::apply(
        [&](P&... value) {
            void* pointers[] = {&value..., nullptr};
            check_cuda(cudaLaunchKernel(symbol, grid.blocks, grid.threads, pointers, grid.shared_bytes, native(stream)),
                       "launch of ", grid.blocks.x, " x ", grid.blocks.y, " x ", grid.blocks.z, " blocks of ",
                       grid.threads.x * grid.threads.y * grid.threads.z, " threads");
        },
        values);
}

// The block's one variable of type T in static shared memory; not initialised. Two uses in a kernel need a barrier
// between them.
template <class T>
__device__ __forceinline__ T& block_shared() {
    __shared__ T variable;
    return variable;
}
// The shared memory that the launch asked for, 16-byte aligned.
__device__ __forceinline__ std::byte* dynamic_shared() {
    extern __shared__ uint4 dynamic_shared_memory[];
    return reinterpret_cast<std::byte*>(dynamic_shared_memory);
}

#endif

}  // namespace tutti

#ifdef TUTTI_CUDA_EMULATED
#include "tests/cuda/emulation/launch.h"
#endif
