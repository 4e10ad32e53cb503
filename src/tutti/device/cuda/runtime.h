// device/cuda/runtime.h: the one header that includes the CUDA runtime, and the conversion of CUDA's errors into ours.
// In a build with TUTTI_CUDA_EMULATED (test programs, tests/cuda) the same names come from tests/cuda/emulation, which
// runs kernels on the CPU. The parts that only kernels need are in launch.h.
#pragma once

#ifdef TUTTI_CUDA_EMULATED
#include "tests/cuda/emulation/api.h"
#else
#include <cuda.h>
#include <cuda_runtime.h>
#endif

#include "tutti/base/error.h"
#include "tutti/device/stream.h"

namespace tutti {

// Throws when a call of the runtime failed. `parts` name the call, its sizes and its device: "cudaMalloc of 3 GiB".
template <class... Parts>
void check_cuda(cudaError_t status, const Parts&... parts) {
    if (status != cudaSuccess) [[unlikely]]
        throw Error(concat(parts..., " failed: ", cudaGetErrorString(status), " (", cudaGetErrorName(status), ")"));
}

// States that no later work of `stream` reads these values. The emulation overwrites them with NaN at this place of the
// stream, which reveals work beside the stream that still needs the values; of large ones the first 4 MiB.
#ifdef TUTTI_CUDA_EMULATED
inline void end_of_values(void* data, int64_t bytes, cudaStream_t stream) {
    cudaMemsetAsync(data, 0xFF, static_cast<size_t>(bytes < 4 << 20 ? bytes : 4 << 20), stream);
}
#else
inline void end_of_values(void*, int64_t, cudaStream_t) {}
#endif

inline cudaStream_t native(const Stream& stream) { return static_cast<cudaStream_t>(stream.native); }

}  // namespace tutti
