// device/cuda/cuda_device.h: NVIDIA GPUs as devices. A rank has one stream: kernels and copies run in the order in
// which they were started, so a released block of memory can be reused at once and no kernel needs a wait.
#pragma once

#include <memory>
#include <string>

#include "tutti/device/device.h"
#include "tutti/device/gpu.h"

namespace tutti {

Gpus find_gpus();  // does not throw
// The architectures that this build's kernels were compiled for: "90a-real".
std::string kernel_architectures();
// Why the kernels do not run on this GPU, and what to try; "" when they run.
std::string why_unfit(const Gpu& gpu);

GpuAndDriver current_gpu();  // of this thread; Error without one

// The offload device of a CUDA device is the host's pinned memory on the same stream: kernels read and write that
// memory over the bus; the host's code reaches it through copies only. peak() is the peak of the whole GPU.
std::unique_ptr<Device> make_cuda_device(int index);

}  // namespace tutti
