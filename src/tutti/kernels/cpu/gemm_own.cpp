// kernels/cpu/gemm_own.cpp: takes the place of gemm.cpp in builds with TUTTI_ONEDNN=OFF (cmake/kernels.cmake): every
// product by isa/gemm_plain.cpp, which reaches 80 % of the f32 peak and has no faster path for bf16.
#include "tutti/kernels/cpu/fill.h"

namespace tutti::kernels {

void fill_gemm(KernelTable& table, Isa isa) {
    table.gemm = isa == Isa::avx512 ? avx512::gemm : avx2::gemm;
    table.gemm_engine = gemm_engine();
}

const char* gemm_engine() { return "own"; }

}  // namespace tutti::kernels
