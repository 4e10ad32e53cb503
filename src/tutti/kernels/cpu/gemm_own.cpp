// kernels/cpu/gemm_own.cpp: takes the place of gemm.cpp in builds with TUTTI_ONEDNN=OFF (cmake/kernels.cmake): every
// product is our own (isa/gemm_blocked.cpp), which in f32 reaches 80 % of the peak.
#include "tutti/kernels/cpu/fill.h"

namespace tutti::kernels {

void fill_gemm(KernelTable& table, Isa isa) {
    table.gemm = own_gemm(isa).gemm;
    table.gemm_workspace = own_gemm(isa).workspace;
    table.gemm_engines = gemm_engines();
    table.gemm_engine = [](const Stream&, const Gemm&) { return "own"; };
}

const char* gemm_engines() { return "own"; }

}  // namespace tutti::kernels
