// comm/nccl/nccl_world.h: a world of ranks with one GPU each. Tensors in GPU memory go through NCCL, overlapped with
// compute; tensors in host memory go through the wrapped world.
#pragma once

#include <memory>

#include "tutti/comm/world.h"

namespace tutti::comm {

// "NCCL 2.28.9"; UsageError if the library is missing or this build has no CUDA.
std::string nccl_library();

// Collective over `inner`; `inner` and `device` must outlive the world. A thread of the world watches operations in
// flight. If an operation takes too long, NCCL reports an error, or another rank has failed, the thread aborts all
// operations of this rank, and the rank's next wait for the device throws TimedOut, Error or Aborted.
std::unique_ptr<World> nccl_world(World& inner, Device& device, const DeviceWorldOptions& options);

}  // namespace tutti::comm
