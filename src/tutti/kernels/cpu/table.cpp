// kernels/cpu/table.cpp: detects the instruction set of this machine and builds the table of kernels for each.
#include <string_view>
#include <vector>

#include "tutti/base/environment.h"
#include "tutti/base/error.h"
#include "tutti/device/cpu/tiles.h"
#include "tutti/kernels/cpu/attention_plan.h"
#include "tutti/kernels/cpu/delta_rule_plan.h"
#include "tutti/kernels/cpu/fill.h"
#include "tutti/kernels/cpu/gemm_plan.h"
#include "tutti/kernels/epilogue.h"

namespace tutti::kernels {

const char* name_of(Isa isa) {
    switch (isa) {
        case Isa::avx2: return "avx2";
        case Isa::avx512: return "avx512";
        case Isa::avx512_bf16: return "avx512_bf16";
        case Isa::amx: return "amx";
    }
    return "";
}

namespace {

Isa widest_isa() {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl")) {
        if (!__builtin_cpu_supports("avx512bf16")) return Isa::avx512;
        return tiles_available() ? Isa::amx : Isa::avx512_bf16;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
        return Isa::avx2;
    throw UsageError(
        "the CPU back end needs AVX2, FMA and F16C, which this processor lacks; run on one from 2013 or later");
}

}  // namespace

// Intel's dot product of bf16 starts every other cycle, so its pairs are multiplied at half of the rate of f32
// (Emerald Rapids, bench/results/gemm_cpu_emerald.md); AMD's are at twice that rate. Machines whose hypervisor hides
// the tiles of such a processor multiply in f32.
Isa best_isa() {
    const Isa widest = widest_isa();
    return widest == Isa::avx512_bf16 && __builtin_cpu_is("intel") ? Isa::avx512 : widest;
}

namespace {

Isa named_isa(std::string_view named) {
    std::vector<std::string_view> names;
    for (const Isa isa : {Isa::avx2, Isa::avx512, Isa::avx512_bf16, Isa::amx}) {
        if (isa > widest_isa()) break;
        if (named == name_of(isa)) return isa;
        names.push_back(name_of(isa));
    }
    throw UsageError(
        concat("TUTTI_CPU_ISA must be one of this processor's (", joined(names), "), got \"", named, "\""));
}

template <Isa isa>
OwnGemm with_sizes(void (*gemm)(const Stream&, const Gemm&)) {
    return {gemm, [](const Stream& stream, const Gemm& g) { return own_gemm_workspace(isa, stream, g); },
            [](const Stream& stream, const Gemm& g) { return own_gemm_packed_b(isa, stream, g); }};
}

KernelTable make_table(const char* name, Isa isa, void (*fill_table)(KernelTable&)) {
    KernelTable table;
    table.name = name;
    fill_table(table);
    fill_gemm(table, isa);
    table.gemm_by_rows = true;
    table.own_value_width = true;
    table.packing_counts = isa >= Isa::avx512_bf16;
    table.attention_implementations = [] { return "own"; };
    table.attention_implementation = [](const Stream&, const AttentionForward&) { return "own"; };
    table.attention_workspace = attention::workspace;
    table.delta_rule_workspace = delta::workspace;
    fill_portable(table);
    fill_choices(table);
    fill_float8(table);
    fill_grouped_gemm(table, isa);
    return table;
}

}  // namespace

Isa chosen_isa() {
    static const Isa kChosen = [] {
        const auto named = environment_variable("TUTTI_CPU_ISA");
        if (!named) return best_isa();
        const Isa isa = named_isa(*named);
        bound_library(isa);
        return isa;
    }();
    return kChosen;
}

OwnGemm own_gemm(Isa isa) {
    switch (isa) {
        case Isa::avx2: return with_sizes<Isa::avx2>(avx2::gemm);
        case Isa::avx512: return with_sizes<Isa::avx512>(avx512::gemm);
        case Isa::avx512_bf16: return with_sizes<Isa::avx512_bf16>(avx512_bf16::gemm);
        case Isa::amx: return with_sizes<Isa::amx>(amx::gemm);
    }
    return {};
}

// The kernel after the product takes as long as an epilogue inside it, on AVX-512 and AVX2 (Ice Lake) and on AMX, where
// the kernel takes 1 to 8 % less of both together in bf16 (bench/results/gemm_cpu_icelake.md, gemm_cpu_emerald.md).
void multiply(Isa isa, const Stream& stream, const Gemm& g) {
    own_gemm(isa).gemm(stream, without_epilogue(g));
    apply_epilogue(cpu_table(isa), stream, g);
}

const KernelTable& cpu_table(Isa isa) {
    static const KernelTable kAvx2 = make_table("cpu-avx2", Isa::avx2, avx2::fill_table);
    static const KernelTable kAvx512 = make_table("cpu-avx512", Isa::avx512, avx512::fill_table);
    static const KernelTable kAvx512Bf16 = make_table("cpu-avx512_bf16", Isa::avx512_bf16, avx512_bf16::fill_table);
    static const KernelTable kAmx = make_table("cpu-amx", Isa::amx, [](KernelTable& table) {
        avx512_bf16::fill_table(table);
        amx::fill_attention(table);
    });
    switch (isa) {
        case Isa::avx2: return kAvx2;
        case Isa::avx512: return kAvx512;
        case Isa::avx512_bf16: return kAvx512Bf16;
        case Isa::amx: return kAmx;
    }
    return kAvx2;
}

}  // namespace tutti::kernels
