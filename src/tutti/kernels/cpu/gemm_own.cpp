// kernels/cpu/gemm_own.cpp: the matrix products of a build with TUTTI_ONEDNN=OFF, which compiles this file instead of
// gemm.cpp (cmake/kernels.cmake): always our own (isa/gemm_blocked.cpp), which reaches 80 % of the peak in f32.
#include "tutti/kernels/cpu/fill.h"

namespace tutti::kernels {

namespace {

template <Isa isa>
void fill(KernelTable& table) {
    table.gemm = [](const Stream& stream, const Gemm& g) { multiply(isa, stream, g); };
}

}  // namespace

void fill_gemm(KernelTable& table, Isa isa) {
    switch (isa) {
        case Isa::avx2: fill<Isa::avx2>(table); break;
        case Isa::avx512: fill<Isa::avx512>(table); break;
        case Isa::avx512_bf16: fill<Isa::avx512_bf16>(table); break;
        case Isa::amx: fill<Isa::amx>(table); break;
    }
    table.gemm_workspace = own_gemm(isa).workspace;
    table.gemm_packed_b = own_gemm(isa).packed_b;
    table.gemm_implementations = gemm_implementations;
    table.gemm_implementation = [](const Stream&, const Gemm&) { return "own"; };
}

void bound_library(Isa) {}

const char* gemm_implementations() { return "own"; }

}  // namespace tutti::kernels
