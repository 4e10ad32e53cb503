// kernels/cpu/fill.h: the functions that fill the CPU tables. Each sets its own entries of the table and no other.
#pragma once

#include "tutti/kernels/kernel_table.h"

namespace tutti::kernels {

void fill_gemm(KernelTable& table, Isa isa);  // cpu/gemm.cpp; in builds without oneDNN cpu/gemm_own.cpp
void fill_grouped_gemm(KernelTable& table, Isa isa);
void fill_choices(KernelTable& table);   // sort_choices, accept_choices, order_arrivals
void fill_float8(KernelTable& table);    // amax, quantize, dequantize
void fill_portable(KernelTable& table);  // exact_sum, rope_table, sample, decay

// The two implementations of the matrix product, for benchmarks that compare them: our own for each instruction set,
// and oneDNN's, which a build without oneDNN lacks.
struct OwnGemm {
    void (*gemm)(const Stream&, const Gemm&);
    int64_t (*workspace)(const Stream&, const Gemm&);
    int64_t (*packed_b)(const Stream&, const Gemm&);  // 0 for products of few rows
};
OwnGemm own_gemm(Isa isa);
// With at most this many rows of c, our own product reads a transposed b in place (isa/gemm_few_rows.h). With more rows
// the arithmetic dominates and packing b pays.
inline constexpr int64_t kFewRowsOfC = 16;
// Our own product, and the kernel of its epilogue.
void multiply(Isa isa, const Stream& stream, const Gemm& gemm);
void gemm_onednn(const Stream& stream, const Gemm& gemm);
// Restricts oneDNN to the instructions of `isa`. Throws Error after the first product of oneDNN.
void bound_library(Isa isa);

// The vector functions of isa/simd.h applied to arrays of n floats, for the test that measures their errors.
struct VectorMath {
    void (*exp)(const float* x, float* y, int64_t n) = nullptr;
    void (*exp2)(const float* x, float* y, int64_t n) = nullptr;  // exp2_bounded, for any x
    void (*sigmoid)(const float* x, float* y, int64_t n) = nullptr;
    void (*reciprocal)(const float* x, float* y, int64_t n) = nullptr;
    // For results that are rounded to bf16 next.
    void (*exp2_for_bf16)(const float* x, float* y, int64_t n) = nullptr;
    void (*sigmoid_for_bf16)(const float* x, float* y, int64_t n) = nullptr;
};

// cpu/isa/*.cpp, compiled once per instruction set. Tables are filled on every machine, because planning needs their
// sizes. The functions that fill them are therefore compiled without the instructions of the set: the compiler would
// otherwise store pointers with vectors.
namespace avx2 {
[[gnu::target("general-regs-only")]] void fill_table(KernelTable& table);  // all but the products
VectorMath vector_math();
void gemm(const Stream& stream, const Gemm& gemm);
}  // namespace avx2

namespace avx512 {
[[gnu::target("general-regs-only")]] void fill_table(KernelTable& table);
VectorMath vector_math();
void gemm(const Stream& stream, const Gemm& gemm);
}  // namespace avx512

namespace avx512_bf16 {
[[gnu::target("general-regs-only")]] void fill_table(KernelTable& table);
VectorMath vector_math();
void gemm(const Stream& stream, const Gemm& gemm);
}  // namespace avx512_bf16

namespace amx {  // products and attention; all other kernels are those of avx512_bf16
[[gnu::target("general-regs-only")]] void fill_attention(KernelTable& table);
void gemm(const Stream& stream, const Gemm& gemm);
}  // namespace amx

namespace amx_emulated {  // the same source with tiles as arrays and no instruction beyond avx512's: in tests only
[[gnu::target("general-regs-only")]] void fill_attention(KernelTable& table);
void gemm(const Stream& stream, const Gemm& gemm);
}  // namespace amx_emulated

}  // namespace tutti::kernels
