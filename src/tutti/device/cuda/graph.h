// device/cuda/graph.h: work that is captured from a stream into a CUDA graph. A launch costs the host some
// microseconds, a graph of thousands little more than one. Below: queue.h. Called by cuda_device.cpp.
#pragma once

#include <functional>
#include <memory>

#include "tutti/device/cuda/queue.h"

namespace tutti::cuda {

// Device::record on the stream of `queue`.
std::unique_ptr<Recording> record(const std::shared_ptr<Queue>& queue, const std::function<void()>& work);

}  // namespace tutti::cuda
