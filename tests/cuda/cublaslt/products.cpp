// Products by kernels/cuda/gemm_cublaslt.cpp over the fake library; the CPU's kernel computes those that the library
// refuses.
#include "tests/cuda/borrowed_products.h"
#include "tests/cuda/emulation/memory.h"
#include "tutti/device/cuda/runtime.h"
#include "tutti/kernels/cuda/fill.h"

namespace tutti::kernels {

void replace_products(KernelTable& table) {
    cuda::fill_gemm(table);
    cuda::fill_grouped_gemm(table);
}

void cuda::fill_gemm_plain(KernelTable& table, bool) {
    table.gemm = [](const Stream& stream, const Gemm& g) {
        emulation::enqueue(native(stream), [g] {
            const emulation::DeviceAccess access;
            reference_table().gemm(Stream{}, g);
        });
    };
}

}  // namespace tutti::kernels
