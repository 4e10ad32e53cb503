// tests/cuda/emulation/hopper.h: the instructions of compute capability 9.0 that work beside the threads, on the CPU:
// mbarriers, named barriers, tensor copies (TMA) and products of warp groups (wgmma). They read what the hardware
// reads: tensor maps, matrix descriptors, addresses of shared memory.
//
// Detects errors that a GPU may hide: a copy without a wait (the copy arrives as late as it can, with NaN in its place
// until then; a copy from shared memory reads as late as it can, and writes later still), a copy that reports to an
// mbarrier without the fence that its initialisation needs, a product without a wait (its registers are NaN until
// then), shared memory that changes under a product, words stored without the fence that products and copies need,
// bytes that a barrier expects and that never arrive, any of these on a GPU that is no Hopper.
#pragma once

#include "tests/cuda/emulation/block.h"

namespace tutti::emulation {

inline constexpr int kWarpGroup = 128;

// mbarrier: a phase is complete after all arrivals and all expected bytes.
void barrier_init(uint64_t* barrier, uint32_t arrivals);
void publish_barriers(Place place);  // those of the calling thread, to copies
void barrier_arrive(uint64_t* barrier, uint32_t expected_bytes, Place place);
void barrier_wait(uint64_t* barrier, uint32_t parity, Place place);

// bar.sync and bar.arrive: `threads` of them together end a phase.
void named_barrier_sync(int id, int threads, Place place);
void named_barrier_arrive(int id, int threads, Place place);

// cp.async.bulk.tensor: the map's box at these coordinates, innermost first, to shared memory; zeros beyond the end of
// the tensor. All bytes, zeros included, count on the barrier.
void load_box(void* shared, const CUtensorMap* map, uint64_t* barrier, const int (&coordinates)[4]);

// stmatrix of four (8, 8) matrices of 16-bit elements, at once; and a plain store of 16 bytes. Products and copies may
// read either after the thread's fence.proxy.async, which is publish_shared.
void store_matrices(void* row, const uint32_t (&registers)[4], Place place);
void store_word(float4& to, const float4& word);
void publish_shared(Place place);

// cp.async.bulk and cp.reduce.async.bulk to f32 in global memory, and waiting for all of them that the calling thread
// has started.
void copy_out(float* to, const void* shared, uint32_t bytes, bool add);
void wait_until_read(Place place);
void wait_until_written(Place place);

// A word in global memory that blocks pass on: ld.acquire until it is `mine`, st.release.
void wait_for_turn(const int32_t* turns, int mine, Place place);
void pass_turn(int32_t* turns, int next, Place place);

// Kernels start such copies from and to memory of cudaMalloc only: on managed memory they would rest on page faults
// while the copy runs, on the host's on additions over the bus. Throws for other memory.
void check_of_device(const CUtensorMap& map);
void check_of_device(const void* data);

// wgmma.mma_async, PTX ISA 9.7.15.5: sums (64, columns) = [sums +] a (64, 16) b (16, columns) in bf16, called by the
// 128 threads of a warp group. a comes from registers, or from shared memory by its descriptor.
struct WarpGroupProduct {
    float* sums;  // of this thread: columns / 2
    int columns;
    const uint32_t* a;  // 4 registers, or null
    uint64_t a_descriptor, b_descriptor;
    bool a_transposed, b_transposed;  // M-major, N-major
    bool accumulate;
};
void warp_group_multiply(const WarpGroupProduct& product, Place place);
void commit_products();
// Waits until all groups of the calling thread but the last `pending` are complete, each as late as possible.
void wait_for_products(int pending, Place place);

}  // namespace tutti::emulation
