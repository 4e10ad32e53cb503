// base/host_device.h: marks functions that host code and CUDA kernels share and that cannot be constexpr. Empty for
// other compilers.
#pragma once

#ifdef __CUDACC__
#define TUTTI_HOST_DEVICE __host__ __device__
#else
#define TUTTI_HOST_DEVICE
#endif
