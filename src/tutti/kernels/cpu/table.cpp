// kernels/cpu/table.cpp: which instruction set this machine has, and the table of kernels for it. Called once per
// device.
#include "tutti/base/error.h"
#include "tutti/kernels/cpu/fill.h"

namespace tutti::kernels {

const char* name_of(Isa isa) { return isa == Isa::avx512 ? "avx512" : "avx2"; }

Isa best_isa() {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bf16"))
        return Isa::avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
        return Isa::avx2;
    throw UsageError(
        "the CPU back end needs AVX2, FMA and F16C, which this processor lacks; run on one from 2013 or later");
}

const KernelTable& cpu_table(Isa isa) {
    static const KernelTable kAvx2 = [] {
        KernelTable table;
        table.name = "cpu-avx2";
        avx2::fill_elementwise(table);
        avx2::fill_activation(table);
        avx2::fill_normal(table);
        avx2::fill_dropout(table);
        avx2::fill_reduction(table);
        avx2::fill_embedding(table);
        avx2::fill_layer_norm(table);
        avx2::fill_rms_norm(table);
        avx2::fill_rope(table);
        avx2::fill_optimizer(table);
        avx2::fill_attention(table);
        avx2::fill_cross_entropy(table);
        fill_gemm(table, Isa::avx2);
        return table;
    }();
    static const KernelTable kAvx512 = [] {
        KernelTable table;
        table.name = "cpu-avx512";
        avx512::fill_elementwise(table);
        avx512::fill_activation(table);
        avx512::fill_normal(table);
        avx512::fill_dropout(table);
        avx512::fill_reduction(table);
        avx512::fill_embedding(table);
        avx512::fill_layer_norm(table);
        avx512::fill_rms_norm(table);
        avx512::fill_rope(table);
        avx512::fill_optimizer(table);
        avx512::fill_attention(table);
        avx512::fill_cross_entropy(table);
        fill_gemm(table, Isa::avx512);
        return table;
    }();
    return isa == Isa::avx512 ? kAvx512 : kAvx2;
}

}  // namespace tutti::kernels
