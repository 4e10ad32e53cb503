#include "tutti/device/cuda/launch.h"

#include <map>
#include <mutex>

namespace tutti {

#ifndef TUTTI_CUDA_EMULATED

void allow_shared(const void* kernel, size_t bytes) {
    static std::mutex mutex;
    static std::map<std::pair<int, const void*>, size_t> allowed;
    int gpu = 0;
    check_cuda(cudaGetDevice(&gpu), "cudaGetDevice");
    const std::lock_guard lock(mutex);
    size_t& most = allowed[{gpu, kernel}];
    if (bytes <= most) return;
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
               "a kernel with ", bytes, " bytes of shared memory");
    most = bytes;
}

#endif

}  // namespace tutti
