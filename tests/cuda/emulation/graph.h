// tests/cuda/emulation/graph.h: streams that are captured and the graphs made of them: closures in the order in which
// they were started.
#pragma once

#include <functional>

#include "tests/cuda/emulation/api.h"

namespace tutti::emulation {

// True: `node` was recorded into the graph that captures `stream`. False: the caller must run it now.
bool captured(cudaStream_t stream, const std::function<void()>& node);

// The result of calls that are not allowed in a capturing thread. Invalidates the capture if there is one.
cudaError_t outside_of_capture();

}  // namespace tutti::emulation
