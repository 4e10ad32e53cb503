// kernels/cuda/tensor_core.h: tensor core instructions (PTX ISA, sections on mma, ldmatrix and cp.async; compute
// capability 8.0 and up). tests/cuda/emulation/instructions.h has the same functions for the emulation.
//
// Fragments: of the (16, 8) f32 accumulator, lane l of a warp holds rows l/4 and l/4 + 8, columns 2 (l%4) and the next.
#pragma once

#include "tutti/kernels/cuda/element.h"

namespace tutti::kernels::cuda {

using Accumulator = float[4];   // (l/4, 2 (l%4)), next column; the same of row l/4 + 8
using FragmentA = uint32_t[4];  // (16, 16) of 16 bits each
using FragmentB = uint32_t[2];  // (16, 8)

#ifndef TUTTI_CUDA_EMULATED

// c (16, 8) += a (16, 16) b (16, 8), of type T
template <class T>
__device__ __forceinline__ void mma(Accumulator& c, const FragmentA& a, const FragmentB& b) {
    if constexpr (std::is_same_v<T, bf16>)
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    else
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ uint32_t shared_address(const void* shared) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}
// Four (8, 8) matrices of 16-bit elements; lanes 8 i to 8 i + 7 give the addresses of the rows of matrix i. Lane l gets
// the two elements at row l/4, column 2 (l%4) of each.
__device__ __forceinline__ void load_matrices(uint32_t (&to)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}
// The same of the transposed matrices.
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&to)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}
// Copies 16 bytes to shared memory, bypassing registers; zeros where `exists` is false.
__device__ __forceinline__ void copy_async(void* shared, const void* global, bool exists) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
                 "r"(exists ? 16 : 0)
                 : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until all groups of this thread but the last `pending` have arrived; other threads see them after a barrier.
template <int pending>
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

#endif

// 16 columns of accumulators, rounded to T, as the left operand, whose register layout is the same.
template <class T>
__device__ __forceinline__ void round_to(FragmentA& a, const Accumulator& left, const Accumulator& right) {
    a[0] = to_pair<T>(left[0], left[1]);
    a[1] = to_pair<T>(left[2], left[3]);
    a[2] = to_pair<T>(right[0], right[1]);
    a[3] = to_pair<T>(right[2], right[3]);
}

}  // namespace tutti::kernels::cuda
