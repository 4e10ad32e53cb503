// kernels/cuda/element.h: loads and stores of elements, which are floats in registers, 16 bytes at a time where the
// addresses allow it; conversions, and dispatch on the type.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "tutti/base/ceil_div.h"
#include "tutti/base/dtype.h"
#include "tutti/base/host_device.h"
#include "tutti/device/cuda/launch.h"
#include "tutti/tensor/view.h"
#ifdef TUTTI_CUDA_EMULATED
#include "tests/cuda/emulation/instructions.h"
#endif

namespace tutti::kernels::cuda {

inline constexpr int kWarp = 32;

inline constexpr float kLog2e = 1.4426950408889634f;

#ifndef TUTTI_CUDA_EMULATED
// Rounds to nearest even. Every NaN becomes the same NaN.
__device__ __forceinline__ uint16_t to_bf16_bits(float x) {
    uint16_t bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
// Two in one word, `low` in the low half.
__device__ __forceinline__ uint32_t to_bf16_pair(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
__device__ __forceinline__ uint16_t to_f16_bits(float x) {
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
__device__ __forceinline__ uint32_t to_f16_pair(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
__device__ __forceinline__ float from_f16_bits(uint16_t bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}
// 1 / x with an error of at most one unit in the last place; 0 from 2^126 on.
__device__ __forceinline__ float fast_reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// 2^x with an error of at most two units in the last place.
__device__ __forceinline__ float fast_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// To global memory, never split into narrower stores.
__device__ __forceinline__ void store_16_bytes(const uint4& word, void* to) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(word.x), "r"(word.y), "r"(word.z),
                 "r"(word.w)
                 : "memory");
}
#endif

__device__ __forceinline__ float load_one(const float* x) { return *x; }
__device__ __forceinline__ float load_one(const bf16* x) { return bf16_value(x->bits); }
__device__ __forceinline__ float load_one(const f16* x) { return from_f16_bits(x->bits); }
__device__ __forceinline__ void store_one(float value, float* y) { *y = value; }
__device__ __forceinline__ void store_one(float value, bf16* y) { y->bits = to_bf16_bits(value); }
__device__ __forceinline__ void store_one(float value, f16* y) { y->bits = to_f16_bits(value); }

// x rounded to the type and converted back.
__device__ __forceinline__ float rounded(float x, const float*) { return x; }
__device__ __forceinline__ float rounded(float x, const bf16*) { return bf16_value(to_bf16_bits(x)); }
__device__ __forceinline__ float rounded(float x, const f16*) { return from_f16_bits(to_f16_bits(x)); }

// Two values rounded to T in one word, `low` in the low half.
template <class T>
__device__ __forceinline__ uint32_t to_pair(float low, float high) {
    if constexpr (std::is_same_v<T, bf16>)
        return to_bf16_pair(low, high);
    else
        return to_f16_pair(low, high);
}

// The elements of one 16-byte word.
template <class T>
inline constexpr int kPack = 16 / sizeof(T);

__device__ __forceinline__ void unpack(const uint4& word, const float*, float* to) {
    const uint32_t bits[] = {word.x, word.y, word.z, word.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = std::bit_cast<float>(bits[i]);
}
__device__ __forceinline__ void unpack(const uint4& word, const bf16*, float* to) {
    const uint32_t bits[] = {word.x, word.y, word.z, word.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        to[2 * i] = std::bit_cast<float>(bits[i] << 16);
        to[2 * i + 1] = std::bit_cast<float>(bits[i] & 0xffff0000u);
    }
}
__device__ __forceinline__ void unpack(const uint4& word, const f16*, float* to) {
    const uint32_t bits[] = {word.x, word.y, word.z, word.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        to[2 * i] = from_f16_bits(static_cast<uint16_t>(bits[i]));
        to[2 * i + 1] = from_f16_bits(static_cast<uint16_t>(bits[i] >> 16));
    }
}
__device__ __forceinline__ uint4 pack(const float* x, const float*) {
    return {std::bit_cast<uint32_t>(x[0]), std::bit_cast<uint32_t>(x[1]), std::bit_cast<uint32_t>(x[2]),
            std::bit_cast<uint32_t>(x[3])};
}
__device__ __forceinline__ uint4 pack(const float* x, const bf16*) {
    return {to_bf16_pair(x[0], x[1]), to_bf16_pair(x[2], x[3]), to_bf16_pair(x[4], x[5]), to_bf16_pair(x[6], x[7])};
}
__device__ __forceinline__ uint4 pack(const float* x, const f16*) {
    return {to_f16_pair(x[0], x[1]), to_f16_pair(x[2], x[3]), to_f16_pair(x[4], x[5]), to_f16_pair(x[6], x[7])};
}

// N elements: one, or whole 16-byte words at an address that is a multiple of 16.
template <int N, class T>
__device__ __forceinline__ void load(const T* from, float (&to)[N]) {
    if constexpr (N == 1) {
        to[0] = load_one(from);
    } else {
        static_assert(N % kPack<T> == 0);
#pragma unroll
        for (int w = 0; w < N / kPack<T>; ++w) {
            const uint4 word = reinterpret_cast<const uint4*>(from)[w];  // by value: else nvcc loads its parts
            unpack(word, from, to + w * kPack<T>);
        }
    }
}
template <int N, class T>
__device__ __forceinline__ void store(const float (&from)[N], T* to) {
    if constexpr (N == 1) {
        store_one(from[0], to);
    } else {
        static_assert(N % kPack<T> == 0);
#pragma unroll
        for (int w = 0; w < N / kPack<T>; ++w) {
            const uint4 word = pack(from + w * kPack<T>, static_cast<const T*>(to));
            reinterpret_cast<uint4*>(to)[w] = word;
        }
    }
}

// store() to global memory for kernels whose stores nvcc would split into words of 4 bytes (scripts/check_sass.py). The
// asm is a compiler barrier that later loads cannot pass, so other kernels use store().
template <int N, class T>
__device__ __forceinline__ void store_whole(const float (&from)[N], T* to) {
    if constexpr (N == 1) {
        store<N>(from, to);
    } else {
#pragma unroll
        for (int w = 0; w < N / kPack<T>; ++w)
            store_16_bytes(pack(from + w * kPack<T>, static_cast<const T*>(to)), to + w * kPack<T>);
    }
}

// Copies one pack, or one element.
template <int N, class T>
__device__ __forceinline__ void copy_pack(const T* from, T* to) {
    if constexpr (N == 1) {
        *to = *from;
    } else {
        static_assert(N == kPack<T>);
        *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
    }
}

TUTTI_HOST_DEVICE inline bool is_aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

// One thread for each of `tasks`, in blocks of `threads`.
inline Grid grid_of_tasks(int64_t tasks, unsigned threads) {
    return {.blocks = dim3(static_cast<unsigned>(ceil_div(tasks, threads))), .threads = dim3(threads)};
}

// Calls f with a value of the view's type: float, bf16, f16.
template <class F>
void with_type(DType dtype, F&& f) {
    switch (dtype) {
        case DType::f32: return f(float{});
        case DType::bf16: return f(bf16{});
        case DType::f16: return f(f16{});
        default: throw Error(concat("the CUDA kernels take f32, bf16 or f16 here, got ", dtype));
    }
}
// The same of the types of 16 bits.
template <class F>
void with_half(DType dtype, F&& f) {
    dtype == DType::f16 ? f(f16{}) : f(bf16{});
}

}  // namespace tutti::kernels::cuda
