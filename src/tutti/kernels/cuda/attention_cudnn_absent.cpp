// kernels/cuda/attention_cudnn_absent.cpp: a build without the headers of cudnn-frontend. CMake compiles either this
// file or attention_cudnn.cpp.
#include "tutti/base/error.h"
#include "tutti/kernels/cuda/attention_cudnn.h"

namespace tutti::kernels::cuda {

void use_cudnn_attention(KernelTable&) {
    throw UsageError(
        "this build has no cuDNN attention: install the headers (pip install nvidia-cudnn-frontend, and cudnn.h), "
        "configure with -DTUTTI_CUDNN_FRONTEND=DIR, the directory that holds cudnn_frontend.h, and build with CUDA. "
        "Without TUTTI_CUDA_ATTENTION=cudnn our own kernels compute attention");
}

}  // namespace tutti::kernels::cuda
