// kernels/cpu/fill.h: the parts that table.cpp puts together. Each part sets its own entries of the table and no other.
// The lists are the same functions, compiled for each instruction set from cpu/isa.
#pragma once

#include "tutti/kernels/kernel_table.h"

namespace tutti::kernels {

void fill_gemm(KernelTable& table, Isa isa);  // cpu/gemm.cpp; in builds without oneDNN cpu/gemm_own.cpp
void fill_exact_sum(KernelTable& table);
void fill_sampling(KernelTable& table);

// What gemm.cpp chooses between, for who compares them: each ISA's own product, and oneDNN's, absent in builds without.
struct OwnGemm {
    void (*gemm)(const Stream&, const Gemm&);
    int64_t (*workspace)(const Stream&, const Gemm&);
};
OwnGemm own_gemm(Isa isa);
void gemm_onednn(const Stream& stream, const Gemm& gemm);

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

namespace avx2 {
void fill_elementwise(KernelTable& table);  // fill, cast, add, accumulate, scale
void fill_activation(KernelTable& table);   // relu, gelu, swiglu
void fill_normal(KernelTable& table);
void fill_dropout(KernelTable& table);
void fill_reduction(KernelTable& table);  // sums_of_squares, bias_backward, squared_error
void fill_embedding(KernelTable& table);
void fill_layer_norm(KernelTable& table);
void fill_rms_norm(KernelTable& table);
void fill_rope(KernelTable& table);
void fill_optimizer(KernelTable& table);  // adamw, sgd
void fill_attention(KernelTable& table);
void fill_cross_entropy(KernelTable& table);
VectorMath vector_math();
void gemm(const Stream& stream, const Gemm& gemm);  // the product without oneDNN, for cpu/gemm*.cpp
int64_t gemm_workspace(const Stream& stream, const Gemm& gemm);
}  // namespace avx2

namespace avx512 {
void fill_elementwise(KernelTable& table);
void fill_activation(KernelTable& table);
void fill_normal(KernelTable& table);
void fill_dropout(KernelTable& table);
void fill_reduction(KernelTable& table);
void fill_embedding(KernelTable& table);
void fill_layer_norm(KernelTable& table);
void fill_rms_norm(KernelTable& table);
void fill_rope(KernelTable& table);
void fill_optimizer(KernelTable& table);
void fill_attention(KernelTable& table);
void fill_cross_entropy(KernelTable& table);
VectorMath vector_math();
void gemm(const Stream& stream, const Gemm& gemm);
int64_t gemm_workspace(const Stream& stream, const Gemm& gemm);
}  // namespace avx512

namespace amx {  // what multiplies matrices; everything else is avx512's
void fill_attention(KernelTable& table);
void gemm(const Stream& stream, const Gemm& gemm);
int64_t gemm_workspace(const Stream& stream, const Gemm& gemm);
}  // namespace amx

namespace amx_emulated {  // the same source with tiles as arrays: in tests only
void fill_attention(KernelTable& table);
void gemm(const Stream& stream, const Gemm& gemm);
int64_t gemm_workspace(const Stream& stream, const Gemm& gemm);
}  // namespace amx_emulated

}  // namespace tutti::kernels
