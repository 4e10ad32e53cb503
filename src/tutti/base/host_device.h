// base/host_device.h: marks functions, other than constexpr ones, that host code and CUDA kernels share. Empty for
// other compilers than nvcc.
#pragma once

#ifdef __CUDACC__
#define TUTTI_HOST_DEVICE __host__ __device__
#else
#define TUTTI_HOST_DEVICE
#endif
