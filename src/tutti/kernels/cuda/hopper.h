// kernels/cuda/hopper.h: instructions of compute capability 9.0a for barriers, copies and register allocation (PTX ISA:
// mbarrier, bar, stmatrix, cp.async.bulk, cp.reduce.async.bulk, setmaxnreg); wgmma.h has the products.
// tests/cuda/emulation/instructions.h has the same functions for the emulation.
#pragma once

#include "tutti/kernels/cuda/tensor_core.h"

namespace tutti::kernels::cuda {

inline constexpr int kWarpGroup = 128;

// False in code for other architectures, where a kernel's body is empty.
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr bool kHasHopper = false;
#else
inline constexpr bool kHasHopper = true;
#endif

using Mbarrier = uint64_t;  // in shared memory

#ifndef TUTTI_CUDA_EMULATED

__device__ __forceinline__ void init_barrier(Mbarrier& barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(arrivals) : "memory");
}
// Makes the initialised barriers visible to the copies; threads see them after a __syncthreads.
__device__ __forceinline__ void publish_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void arrive(Mbarrier& barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
}
__device__ __forceinline__ void arrive_expecting(Mbarrier& barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)), "r"(bytes)
                 : "memory");
}
// Waits until the phase of this parity is complete. The phase before the first counts as complete and has parity 1.
__device__ __forceinline__ void wait(Mbarrier& barrier, uint32_t parity) {
    uint32_t complete;
    do {
        asm volatile(
            "{\n.reg .pred complete;\nmbarrier.try_wait.parity.shared::cta.b64 complete, [%1], %2;\n"
            "selp.b32 %0, 1, 0, complete;\n}"
            : "=r"(complete)
            : "r"(shared_address(&barrier)), "r"(parity)
            : "memory");
    } while (complete == 0);
}
// Barrier `id` of `threads` threads, in whole warps; barrier 0 is __syncthreads.
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// Loads the map's box that begins at (b, head, row, column) of the tensor, with zeros beyond the tensor's end. The
// barrier counts the bytes of the box.
__device__ __forceinline__ void load_box(void* shared, const CUtensorMap& map, Mbarrier& barrier, int column, int row,
                                         int head, int b) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3,%4,%5,%6}], "
        "[%2];" ::"r"(shared_address(shared)),
        "l"(&map), "r"(shared_address(&barrier)), "r"(column), "r"(row), "r"(head), "r"(b)
        : "memory");
}
// Stores four (8, 8) matrices of 16-bit elements from registers in the layout of a left operand: a (16, 16) tile. Lanes
// 8 i to 8 i + 7 give the addresses of the rows of matrix i.
__device__ __forceinline__ void store_matrices(void* row, const FragmentA& a) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(shared_address(row)), "r"(a[0]),
                 "r"(a[1]), "r"(a[2]), "r"(a[3])
                 : "memory");
}
// Stores 16 bytes in shared memory for a later copy.
__device__ __forceinline__ void store_word(float4& to, const float4& word) { to = word; }
// Makes this thread's stores to shared memory visible to products and to copies that begin after a barrier.
__device__ __forceinline__ void publish_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Starts copying to global memory, or adding to f32 there: `bytes` and both addresses are multiples of 16.
__device__ __forceinline__ void copy_out(float* to, const void* shared, uint32_t bytes, bool add) {
    if (add)
        asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
                     "r"(shared_address(shared)), "r"(bytes)
                     : "memory");
    else
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
                     "r"(shared_address(shared)), "r"(bytes)
                     : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Waits until the thread's copies have read shared memory, or have written global memory.
__device__ __forceinline__ void wait_until_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ __forceinline__ void wait_until_written() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
// Ordered access of threads of several blocks to one place in memory: *turns is the number of the thread that may
// proceed. Copies of one turn, once waited for, end before those of the next begin: the fences order them with the
// turn.
__device__ __forceinline__ void wait_for_turn(const int32_t* turns, int mine) {
    int32_t turn;
    do {
        asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(turn) : "l"(turns) : "memory");
    } while (turn != mine);
    asm volatile("fence.proxy.async.global;" ::: "memory");
}
__device__ __forceinline__ void pass_turn(int32_t* turns, int next) {
    asm volatile("fence.proxy.async.global;\nst.release.gpu.global.b32 [%0], %1;" ::"l"(turns), "r"(next) : "memory");
}
// Sets the number of registers of each thread of a warp group, a multiple of 8: returns registers to the pool of the
// block, or takes them from the pool.
template <int registers>
__device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

#endif

}  // namespace tutti::kernels::cuda
