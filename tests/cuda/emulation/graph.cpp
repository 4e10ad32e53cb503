#include "tests/cuda/emulation/graph.h"

#include <memory>
#include <utility>
#include <vector>

using Nodes = std::vector<std::function<void()>>;

struct EmulatedGraph {
    Nodes nodes;
};
struct EmulatedGraphExec {
    Nodes nodes;
};

namespace {

// The capture of the calling thread (thread-local mode): one stream at a time.
struct Capture {
    cudaStream_t stream = nullptr;
    std::unique_ptr<EmulatedGraph> graph;
    bool spoilt = false;
};
thread_local Capture capture;

}  // namespace

namespace tutti::emulation {

bool captured(cudaStream_t stream, const std::function<void()>& node) {
    if (!capture.graph || stream != capture.stream) return false;
    capture.graph->nodes.push_back(node);
    return true;
}

cudaError_t outside_of_capture() {
    if (!capture.graph) return cudaSuccess;
    capture.spoilt = true;
    return cudaErrorStreamCaptureUnsupported;
}

}  // namespace tutti::emulation

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
    if (stream == nullptr) return cudaErrorStreamCaptureUnsupported;             // the legacy stream
    if (mode != cudaStreamCaptureModeThreadLocal) return cudaErrorInvalidValue;  // the only emulated mode
    if (capture.graph) return cudaErrorIllegalState;
    capture = {stream, std::make_unique<EmulatedGraph>(), false};
    return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
    const bool is = capture.graph && stream == capture.stream;
    *status = !is              ? cudaStreamCaptureStatusNone
              : capture.spoilt ? cudaStreamCaptureStatusInvalidated
                               : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    *graph = nullptr;
    if (!capture.graph || stream != capture.stream) return cudaErrorIllegalState;
    const Capture ended = std::exchange(capture, {});
    if (ended.spoilt) return cudaErrorStreamCaptureInvalidated;
    *graph = new EmulatedGraph(*ended.graph);
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* graph, cudaGraph_t captured, unsigned long long) {
    *graph = new EmulatedGraphExec{captured->nodes};
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
    tutti::emulation::count_launch();
    for (const auto& node : graph->nodes) tutti::emulation::enqueue(stream, node);
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
    delete graph;
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete graph;
    return cudaSuccess;
}
