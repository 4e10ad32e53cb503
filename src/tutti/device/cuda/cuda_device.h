// device/cuda/cuda_device.h: NVIDIA GPUs as devices. A rank has one stream: kernels and copies run on it in the order
// in which they were started, so a released block of memory is handed out again at once and no kernel needs a wait.
// Below: queue.h. Called by make_device.cpp, and by who offloads or reports.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tutti/device/device.h"

namespace tutti {

struct Gpu {
    std::string name;  // "NVIDIA H100 80GB HBM3"
    int64_t memory_bytes = 0;
    int major = 0, minor = 0;  // compute capability
    int multiprocessors = 0;
};

struct Gpus {
    std::vector<Gpu> found;
    std::string why_none;  // when there is none: this build has no CUDA, the driver is missing, no GPU is visible
};
Gpus find_gpus();  // does not throw
// The architectures that this build's kernels were compiled for: "90a-real".
std::string kernel_architectures();
// Why they do not run on this GPU, and what to do; "" when they do.
std::string why_unfit(const Gpu& gpu);

// Its offload device is the host's pinned memory on the same stream: kernels read and write it where it is, over the
// bus; the host's code reaches it through copies only. Its peak is that of the whole GPU.
std::unique_ptr<Device> make_cuda_device(int index);

}  // namespace tutti
