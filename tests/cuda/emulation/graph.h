// tests/cuda/emulation/graph.h: streams that are captured and the graphs made of them: closures in the order in which
// they were started. Called by api.cpp and launch.h.
#pragma once

#include <functional>

#include "tests/cuda/emulation/api.h"

namespace tutti::emulation {

// True: `node` was kept for the graph that `stream` is captured into. False: it is to be done now.
bool captured(cudaStream_t stream, const std::function<void()>& node);

// For calls that are not allowed in a thread that captures: what they must return. Spoils the capture if there is one.
cudaError_t outside_of_capture();

}  // namespace tutti::emulation
