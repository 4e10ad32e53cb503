// kernels/cuda/absent.cpp: the table of a build without CUDA. CMake compiles either this file or the others.
#include "tutti/base/error.h"
#include "tutti/kernels/kernel_table.h"

namespace tutti::kernels {

const KernelTable& cuda_tf32_table() { return cuda_table(); }

const KernelTable& cuda_table() {
    throw UsageError(
        "this build has no CUDA: install the CUDA toolkit (nvcc) and configure with -DTUTTI_CUDA=ON, or use "
        "train.device = \"cpu\"");
}

}  // namespace tutti::kernels
