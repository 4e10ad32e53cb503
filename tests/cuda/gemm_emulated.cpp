// Matrix products where CUDA is emulated: NVIDIA's library needs a GPU. Takes the place of
// kernels/cuda/gemm_cublaslt.cpp.
#include "tutti/kernels/cuda/fill.h"

namespace tutti::kernels::cuda {

std::vector<std::string> slow_products() { return {}; }

void fill_gemm(KernelTable& table, bool tf32) { fill_gemm_plain(table, tf32); }

GemmOfGroup gemm_of_group(bool tf32) {
    KernelTable table;
    fill_gemm_plain(table, tf32);
    return table.gemm;
}

}  // namespace tutti::kernels::cuda
