// tests/cuda/emulation/graph.h: streams that are captured and the graphs made of them: closures in the order in which
// they were started. A capture is one of the process; the thread that began it ends it.
#pragma once

#include <functional>
#include <map>
#include <optional>

#include "tests/cuda/emulation/api.h"

namespace tutti::emulation {

// True: `node` was recorded into the graph that captures `stream`. False: the caller must run it now.
bool captured(cudaStream_t stream, const std::function<void()>& node);

// The result of calls that are not allowed in the calling thread while streams are captured. Invalidates the captures
// that forbid the call.
cudaError_t outside_of_capture();

// An event's place in a capture: how many nodes of each of its streams come before.
struct CapturedPlace {
    uint64_t capture = 0;  // its number; 0: in none
    std::map<cudaStream_t, size_t> before;
};
// Whether the stream is captured; `place` is then where an event that is recorded now stands, else in no capture.
bool record_captured(cudaStream_t stream, CapturedPlace& place);
// The result of a wait of the stream for an event at `place`, where one of both belongs to a capture; else nothing.
// `recorded`: whether the event ever was.
std::optional<cudaError_t> wait_captured(cudaStream_t stream, const CapturedPlace& place, bool recorded);

}  // namespace tutti::emulation
