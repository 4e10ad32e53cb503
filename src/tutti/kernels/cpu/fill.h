// kernels/cpu/fill.h: the parts that table.cpp puts together. Each part sets its own entries of the table and no other.
#pragma once

#include "tutti/kernels/kernel_table.h"

namespace tutti::kernels {

void fill_gemm(KernelTable& table, Isa isa);  // cpu/gemm.cpp; in builds without oneDNN cpu/gemm_own.cpp
void fill_grouped_gemm(KernelTable& table, Isa isa);
void fill_portable(KernelTable& table);  // exact_sum, rope_table, sample

// What gemm.cpp chooses between, for who compares them: each ISA's own product, and oneDNN's, absent in builds without.
struct OwnGemm {
    void (*gemm)(const Stream&, const Gemm&);
    int64_t (*workspace)(const Stream&, const Gemm&);
    int64_t (*packed_b)(const Stream&, const Gemm&);  // of any product but of few rows
};
OwnGemm own_gemm(Isa isa);
// Up to so many rows of c our own reads a transposed b where it lies (isa/gemm_few_rows.h). With more, the arithmetic
// beside the reading counts, and packing pays.
inline constexpr int64_t kFewRowsOfC = 16;
// Our own, in the way that is fastest on `isa`: through its epilogue, or with a kernel after it. The same bits.
void multiply(Isa isa, const Stream& stream, const Gemm& gemm);
void gemm_onednn(const Stream& stream, const Gemm& gemm);
// From now on oneDNN uses no instruction beyond `isa`. Before its first product.
void bound_library(Isa isa);

// Arrays through the vector functions of isa/simd.h, for the test that measures their errors.
struct VectorMath {
    void (*exp)(const float* x, float* y, int64_t n) = nullptr;
    void (*exp2)(const float* x, float* y, int64_t n) = nullptr;  // exp2_bounded, for any x
    void (*sigmoid)(const float* x, float* y, int64_t n) = nullptr;
    void (*reciprocal)(const float* x, float* y, int64_t n) = nullptr;
    // For results that are rounded to bf16 next.
    void (*exp2_for_bf16)(const float* x, float* y, int64_t n) = nullptr;
    void (*sigmoid_for_bf16)(const float* x, float* y, int64_t n) = nullptr;
};

// What cpu/isa/*.cpp is compiled to, once per instruction set. Tables are filled on every machine, for their sizes:
// without the instructions of the set, which the compiler would store pointers with.
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

namespace amx {  // what multiplies matrices; everything else is avx512_bf16's
[[gnu::target("general-regs-only")]] void fill_attention(KernelTable& table);
void gemm(const Stream& stream, const Gemm& gemm);
}  // namespace amx

namespace amx_emulated {  // the same source with tiles as arrays and no instruction beyond avx512's: in tests only
[[gnu::target("general-regs-only")]] void fill_attention(KernelTable& table);
void gemm(const Stream& stream, const Gemm& gemm);
}  // namespace amx_emulated

}  // namespace tutti::kernels
