// kernels/cuda/table.cpp: the table for NVIDIA GPUs. Called once per device.
#include "tutti/kernels/cuda/fill.h"

namespace tutti::kernels {

const KernelTable& cuda_table() {
    static const KernelTable table = [] {
        KernelTable t;
        t.name = "cuda";
        cuda::fill_elementwise(t);
        cuda::fill_activation(t);
        return t;
    }();
    return table;
}

}  // namespace tutti::kernels
