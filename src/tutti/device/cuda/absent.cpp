// device/cuda/absent.cpp: GPUs in a build without CUDA. CMake compiles either this file or the folder's others.
#include "tutti/base/error.h"
#include "tutti/device/cuda/cuda_device.h"

namespace tutti {

Gpus find_gpus() {
    return {{}, "this build has no CUDA back end: install the CUDA toolkit and configure with -DTUTTI_CUDA=ON"};
}

std::string kernel_architectures() { return "none"; }
std::string why_unfit(const Gpu&) { return find_gpus().why_none; }
GpuAndDriver current_gpu() { throw UsageError(find_gpus().why_none); }
std::unique_ptr<Device> make_cuda_device(int) { throw UsageError(find_gpus().why_none); }

}  // namespace tutti
