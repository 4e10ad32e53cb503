// kernels/cuda/wgmma.h: products of warp groups, compute capability 9.0a (PTX ISA, wgmma, section 9.7.15).
// tests/cuda/emulation/instructions.h has the same functions for the emulation.
//
// A warp group, four warps, multiplies 64 rows; warp w of it holds rows 16 w to 16 w + 15 of the sums, as the
// accumulators of mma.sync (tensor_core.h) hold 16 rows, and the left operand likewise when it comes from registers.
#pragma once

#include "tutti/kernels/cuda/hopper.h"

namespace tutti::kernels::cuda {

#ifndef TUTTI_CUDA_EMULATED

// Keeps the compiler from moving uses of these registers across this point: the compiler treats a product as complete
// after its instruction, and may move a wait forwards.
template <int kBlocks>
__device__ __forceinline__ void pin(Accumulator (&c)[kBlocks]) {
#pragma unroll
    for (int n = 0; n < kBlocks; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(c[n][i])::"memory");
}
template <int kSteps>
__device__ __forceinline__ void pin(FragmentA (&a)[kSteps]) {
#pragma unroll
    for (int k = 0; k < kSteps; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(a[k][i])::"memory");
}
// Before products that read or add to registers written since the last product.
__device__ __forceinline__ void fence_registers() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until all groups but the last `pending` are done; afterwards c may be read.
template <int pending, int kBlocks>
__device__ __forceinline__ void wait_for_products(Accumulator (&c)[kBlocks]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
    pin(c);
}

// An instruction names all sums of the thread as operands; only the preprocessor can repeat them.
#define TUTTI_SUMS_OF(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define TUTTI_SUMS_OF_8(n)                                                                                    \
    TUTTI_SUMS_OF(n), TUTTI_SUMS_OF(n + 1), TUTTI_SUMS_OF(n + 2), TUTTI_SUMS_OF(n + 3), TUTTI_SUMS_OF(n + 4), \
        TUTTI_SUMS_OF(n + 5), TUTTI_SUMS_OF(n + 6), TUTTI_SUMS_OF(n + 7)
#define TUTTI_32_SUMS                                        \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define TUTTI_64_SUMS                                                   \
    TUTTI_32_SUMS                                                       \
    ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
    "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define TUTTI_WGMMA(shape, sums, operands, accumulate, majors)                                                    \
    "{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, " accumulate                                              \
    ", 0;\n"                                                                                                      \
    "wgmma.mma_async.sync.aligned." shape "k16.f32.bf16.bf16 {" sums "}, " operands ", accumulate, 1, 1, " majors \
    ";\n}"

// c (64, 8 kBlocks) = [c +] a (64, 16) b (16, 8 kBlocks). Operands in shared memory, K-major both.
template <int kBlocks>
__device__ __forceinline__ void wgmma(Accumulator (&c)[kBlocks], uint64_t a, uint64_t b, bool accumulate) {
    static_assert(kBlocks == 8 || kBlocks == 16);
    if constexpr (kBlocks == 8)
        asm volatile(TUTTI_WGMMA("m64n64", TUTTI_32_SUMS, "%32, %33", "%34", "0, 0")
                     : TUTTI_SUMS_OF_8(0)
                     : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
    else
        asm volatile(TUTTI_WGMMA("m64n128", TUTTI_64_SUMS, "%64, %65", "%66", "0, 0")
                     : TUTTI_SUMS_OF_8(0), TUTTI_SUMS_OF_8(8)
                     : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}
// The same with a from registers and b N-major.
template <int kBlocks>
__device__ __forceinline__ void wgmma(Accumulator (&c)[kBlocks], const FragmentA& a, uint64_t b, bool accumulate) {
    static_assert(kBlocks == 8 || kBlocks == 16);
    if constexpr (kBlocks == 8)
        asm volatile(TUTTI_WGMMA("m64n64", TUTTI_32_SUMS, "{%32,%33,%34,%35}, %36", "%37", "1")
                     : TUTTI_SUMS_OF_8(0)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)));
    else
        asm volatile(TUTTI_WGMMA("m64n128", TUTTI_64_SUMS, "{%64,%65,%66,%67}, %68", "%69", "1")
                     : TUTTI_SUMS_OF_8(0), TUTTI_SUMS_OF_8(8)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)));
}
// The same with both from shared memory, a M-major and b N-major.
template <int kBlocks>
__device__ __forceinline__ void wgmma_transposed(Accumulator (&c)[kBlocks], uint64_t a, uint64_t b, bool accumulate) {
    static_assert(kBlocks == 8);
    asm volatile(TUTTI_WGMMA("m64n64", TUTTI_32_SUMS, "%32, %33", "%34", "1, 1")
                 : TUTTI_SUMS_OF_8(0)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

#undef TUTTI_WGMMA
#undef TUTTI_64_SUMS
#undef TUTTI_32_SUMS
#undef TUTTI_SUMS_OF_8
#undef TUTTI_SUMS_OF

#endif

}  // namespace tutti::kernels::cuda
