// kernels/cuda/tensor_core.h: the instructions of tensor cores that our kernels use (PTX ISA, sections on mma, ldmatrix
// and cp.async; compute capability 8.0 and up), each with a twin for the emulation. Used by attention_forward.cu and
// attention_backward.cu.
//
// Fragments: lane l of a warp holds of the (16, 8) f32 accumulator rows l/4 and l/4 + 8, columns 2 (l%4) and the next.
#pragma once

#include "tutti/kernels/cuda/element.h"

namespace tutti::kernels::cuda {

using Accumulator = float[4];   // (l/4, 2 (l%4)), next column; the same of row l/4 + 8
using FragmentA = uint32_t[4];  // (16, 16) bf16
using FragmentB = uint32_t[2];  // (16, 8) bf16

#ifdef TUTTI_CUDA_EMULATED

namespace twin {

struct MmaSlot {
    FragmentA a;
    FragmentB b;
    Accumulator c;
};

inline float element(const uint32_t* registers, int r, int half) {
    return bf16_value(static_cast<uint16_t>(registers[r] >> (16 * half)));
}

// From where each lane's registers lie in the matrices: PTX ISA, figures of mma.m16n8k16.
inline void multiply(emulation::WarpSlots& slots) {
    MmaSlot lanes[kWarp];
    float a[16][16], b[16][8];
    for (int l = 0; l < kWarp; ++l) {
        std::memcpy(&lanes[l], &slots[static_cast<size_t>(l)], sizeof lanes[l]);
        const int row = l / 4, column = 2 * (l % 4);
        for (int r = 0; r < 4; ++r)
            for (int half = 0; half < 2; ++half)
                a[row + 8 * (r % 2)][column + 8 * (r / 2) + half] = element(lanes[l].a, r, half);
        for (int r = 0; r < 2; ++r)
            for (int half = 0; half < 2; ++half) b[column + 8 * r + half][row] = element(lanes[l].b, r, half);
    }
    float product[16][8] = {};
    for (int row = 0; row < 16; ++row)
        for (int k = 0; k < 16; ++k)
            for (int column = 0; column < 8; ++column) product[row][column] += a[row][k] * b[k][column];
    for (int l = 0; l < kWarp; ++l) {
        for (int i = 0; i < 4; ++i) lanes[l].c[i] += product[l / 4 + 8 * (i / 2)][2 * (l % 4) + i % 2];
        std::memcpy(&slots[static_cast<size_t>(l)], &lanes[l], sizeof lanes[l]);
    }
}

inline void load_matrices(uint32_t (&to)[4], const void* row, bool transposed) {
    const emulation::WarpSlots& slots =
        emulation::warp_meet(&row, sizeof row, nullptr, 0xffffffffu, emulation::Place::current());
    const int lane = emulation::lane();
    for (int matrix = 0; matrix < 4; ++matrix) {
        uint16_t pair[2];
        for (int half = 0; half < 2; ++half) {
            const int fast = 2 * (lane % 4) + half, slow = lane / 4;
            const uint16_t* source;
            std::memcpy(&source, &slots[static_cast<size_t>(8 * matrix + (transposed ? fast : slow))], sizeof source);
            pair[half] = source[transposed ? slow : fast];
        }
        to[matrix] = pair[0] | static_cast<uint32_t>(pair[1]) << 16;
    }
}

}  // namespace twin

inline void mma(Accumulator& c, const FragmentA& a, const FragmentB& b) {
    twin::MmaSlot mine;
    std::memcpy(mine.a, a, sizeof mine.a);
    std::memcpy(mine.b, b, sizeof mine.b);
    std::memcpy(mine.c, c, sizeof mine.c);
    const auto& slots =
        emulation::warp_meet(&mine, sizeof mine, twin::multiply, 0xffffffffu, emulation::Place::current());
    std::memcpy(&mine, &slots[static_cast<size_t>(emulation::lane())], sizeof mine);
    std::memcpy(c, mine.c, sizeof mine.c);
}
inline void load_matrices(uint32_t (&to)[4], const void* row) { twin::load_matrices(to, row, false); }
inline void load_matrices_transposed(uint32_t (&to)[4], const void* row) { twin::load_matrices(to, row, true); }
inline void copy_async(void* shared, const void* global, bool exists) {
    emulation::copy_async(shared, exists ? global : nullptr);
}
inline void commit_copies() { emulation::commit_copies(); }
template <int pending>
void wait_for_copies() {
    emulation::wait_for_copies(pending);
}

#else

// c (16, 8) += a (16, 16) b (16, 8)
__device__ __forceinline__ void mma(Accumulator& c, const FragmentA& a, const FragmentB& b) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
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
// 16 bytes to shared memory without passing registers, zeros where `exists` is false.
__device__ __forceinline__ void copy_async(void* shared, const void* global, bool exists) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
                 "r"(exists ? 16 : 0)
                 : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until all groups but the last `pending` of this thread have arrived; others see them after a barrier.
template <int pending>
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

#endif

// 16 columns of accumulators, rounded to bf16, as the left operand: their registers are where it wants them.
__device__ __forceinline__ void round_to(FragmentA& a, const Accumulator& left, const Accumulator& right) {
    a[0] = to_bf16_pair(left[0], left[1]);
    a[1] = to_bf16_pair(left[2], left[3]);
    a[2] = to_bf16_pair(right[0], right[1]);
    a[3] = to_bf16_pair(right[2], right[3]);
}

}  // namespace tutti::kernels::cuda
