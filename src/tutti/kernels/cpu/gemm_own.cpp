// kernels/cpu/gemm_own.cpp: takes the place of gemm.cpp in builds with TUTTI_ONEDNN=OFF (cmake/kernels.cmake): every
// product is our own (isa/gemm_blocked.cpp), which in f32 reaches 80 % of the peak.
#include "tutti/kernels/cpu/fill.h"

namespace tutti::kernels {

void fill_gemm(KernelTable& table, Isa isa) {
    table.gemm = isa == Isa::avx2 ? avx2::gemm : isa == Isa::avx512 ? avx512::gemm : amx::gemm;
    table.gemm_workspace = isa == Isa::avx2     ? avx2::gemm_workspace
                           : isa == Isa::avx512 ? avx512::gemm_workspace
                                                : amx::gemm_workspace;
    table.gemm_engine = [](const Stream&, const Gemm&) { return "own"; };
}

const char* gemm_engines() { return "own"; }

}  // namespace tutti::kernels
