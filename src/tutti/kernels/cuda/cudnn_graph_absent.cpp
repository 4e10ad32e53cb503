// kernels/cuda/cudnn_graph_absent.cpp: a build without the headers of cuDNN. CMake compiles either this file or
// cudnn_graph.cpp.
#include "tutti/base/error.h"
#include "tutti/kernels/cuda/cudnn_graph.h"

namespace tutti::kernels::cuda {

std::string cudnn_version() {
    throw UsageError(
        "this build has no cuDNN attention: install the headers (pip install nvidia-cudnn-frontend, and cudnn.h), "
        "configure with -DTUTTI_CUDNN_FRONTEND=DIR, the directory that holds cudnn_frontend.h, and build with CUDA. "
        "With [train] attention = \"own\" our own kernels compute attention");
}

std::unique_ptr<CudnnGraph> build_cudnn_graph(const CudnnProblem&, std::string& why) {
    why = "this build has no cuDNN attention";
    return nullptr;
}

}  // namespace tutti::kernels::cuda
