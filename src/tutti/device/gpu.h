// device/gpu.h: what a back end finds on a machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tutti {

struct Gpu {
    std::string name;  // "NVIDIA H100 80GB HBM3"
    int64_t memory_bytes = 0;
    int major = 0, minor = 0;  // compute capability
    int multiprocessors = 0;
};

struct Gpus {
    std::vector<Gpu> found;
    std::string
        why_none;  // when `found` is empty: the build has no such back end, the driver is missing, none is visible
};

// Of times that were measured: "NVIDIA H100 80GB HBM3, 132 multiprocessors", "driver of CUDA 13.0". The driver reports
// the version of CUDA that it supports, not its own.
struct GpuAndDriver {
    std::string gpu, driver;
};

}  // namespace tutti
