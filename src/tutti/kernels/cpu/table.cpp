// kernels/cpu/table.cpp: which instruction set this machine has, and the table of kernels for it. Called once per
// device.
#include "tutti/base/error.h"
#include "tutti/device/cpu/tiles.h"
#include "tutti/kernels/cpu/fill.h"

namespace tutti::kernels {

const char* name_of(Isa isa) {
    switch (isa) {
        case Isa::avx2: return "avx2";
        case Isa::avx512: return "avx512";
        case Isa::amx: return "amx";
    }
    return "";
}

Isa best_isa() {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bf16"))
        return tiles_available() ? Isa::amx : Isa::avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
        return Isa::avx2;
    throw UsageError(
        "the CPU back end needs AVX2, FMA and F16C, which this processor lacks; run on one from 2013 or later");
}

OwnGemm own_gemm(Isa isa) {
    switch (isa) {
        case Isa::avx2: return {avx2::gemm, avx2::gemm_workspace};
        case Isa::avx512: return {avx512::gemm, avx512::gemm_workspace};
        case Isa::amx: return {amx::gemm, amx::gemm_workspace};
    }
    return {};
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
        fill_exact_sum(table);
        fill_sampling(table);
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
        fill_exact_sum(table);
        fill_sampling(table);
        return table;
    }();
    static const KernelTable kAmx = [] {
        KernelTable table = kAvx512;
        table.name = "cpu-amx";
        amx::fill_attention(table);
        fill_gemm(table, Isa::amx);
        return table;
    }();
    switch (isa) {
        case Isa::avx2: return kAvx2;
        case Isa::avx512: return kAvx512;
        case Isa::amx: return kAmx;
    }
    return kAvx2;
}

}  // namespace tutti::kernels
