// base/host_device.h: marks what host code and CUDA kernels share when it cannot be constexpr. Empty for other
// compilers.
#pragma once

#ifdef __CUDACC__
#define TUTTI_HOST_DEVICE __host__ __device__
#else
#define TUTTI_HOST_DEVICE
#endif
