// kernels/cuda/cuda_table.h: the tables for NVIDIA GPUs. Kernels return before the work is done. A table and its sizes
// need no GPU, no driver and no NVIDIA library. A build without CUDA has only the sizes; its gemm_implementations
// throws UsageError.
#pragma once

#include "tutti/kernels/kernel_table.h"

namespace tutti::kernels {

const KernelTable& cuda_table();
const KernelTable& cuda_tf32_table();  // the same, whose f32 products may round their factors to TF32

}  // namespace tutti::kernels
