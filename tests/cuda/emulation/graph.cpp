#include "tests/cuda/emulation/graph.h"

#include <algorithm>
#include <atomic>
#include <list>
#include <mutex>
#include <thread>
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

using tutti::emulation::CapturedPlace;

struct Capture {
    uint64_t number;
    cudaStream_t origin;
    cudaStreamCaptureMode mode;
    std::map<cudaStream_t, std::map<cudaStream_t, size_t>> streams;  // what comes before the next node of each
    std::thread::id owner = std::this_thread::get_id();
    Nodes nodes = {};
    bool spoilt = false;
};

// A global, as in CUDA: a capture forbids calls of other threads.
struct Captures {
    std::mutex mutex;
    std::list<Capture> active;
    uint64_t last = 0;
    std::atomic<size_t> count{0};  // of active ones, for the many calls while there is none

    Capture* of(cudaStream_t stream) {
        for (Capture& c : active)
            if (c.streams.contains(stream)) return &c;
        return nullptr;
    }
    Capture* of(const CapturedPlace& place) {
        for (Capture& c : active)
            if (c.number == place.capture) return &c;
        return nullptr;
    }
};
Captures captures;

}  // namespace

namespace tutti::emulation {

bool captured(cudaStream_t stream, const std::function<void()>& node) {
    if (captures.count == 0) return false;
    const std::lock_guard lock(captures.mutex);
    Capture* const capture = captures.of(stream);
    if (capture == nullptr) return false;
    capture->nodes.push_back(node);
    ++capture->streams[stream][stream];
    return true;
}

cudaError_t outside_of_capture() {
    if (captures.count == 0) return cudaSuccess;
    const std::lock_guard lock(captures.mutex);
    cudaError_t result = cudaSuccess;
    for (Capture& c : captures.active) {
        const bool own = c.owner == std::this_thread::get_id();
        if (own ? c.mode == cudaStreamCaptureModeRelaxed : c.mode != cudaStreamCaptureModeGlobal) continue;
        c.spoilt = true;
        result = cudaErrorStreamCaptureUnsupported;
    }
    return result;
}

bool record_captured(cudaStream_t stream, CapturedPlace& place) {
    place = {};
    if (captures.count == 0) return false;
    const std::lock_guard lock(captures.mutex);
    const Capture* const capture = captures.of(stream);
    if (capture != nullptr) place = {capture->number, capture->streams.at(stream)};
    return capture != nullptr;
}

std::optional<cudaError_t> wait_captured(cudaStream_t stream, const CapturedPlace& place, bool recorded) {
    if (captures.count == 0 && place.capture == 0) return std::nullopt;
    const std::lock_guard lock(captures.mutex);
    Capture *const waits = captures.of(stream), *const of_event = captures.of(place);
    if (place.capture == 0) {
        if (waits == nullptr) return std::nullopt;
        if (!recorded) return cudaSuccess;
        waits->spoilt = true;
        return cudaErrorStreamCaptureIsolation;
    }
    if (of_event == nullptr) return cudaErrorInvalidValue;  // its capture has ended
    if (waits != nullptr && waits != of_event) {
        waits->spoilt = of_event->spoilt = true;
        return cudaErrorStreamCaptureMerge;
    }
    auto& before = of_event->streams[stream];
    for (const auto& [other, nodes] : place.before) before[other] = std::max(before[other], nodes);
    return cudaSuccess;
}

}  // namespace tutti::emulation

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
    if (stream == nullptr) return cudaErrorStreamCaptureUnsupported;  // the legacy stream
    const std::lock_guard lock(captures.mutex);
    if (captures.of(stream) != nullptr) return cudaErrorIllegalState;
    captures.active.push_back({++captures.last, stream, mode, {{stream, {}}}});
    ++captures.count;
    return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
    const std::lock_guard lock(captures.mutex);
    const Capture* const capture = captures.of(stream);
    *status = capture == nullptr ? cudaStreamCaptureStatusNone
              : capture->spoilt  ? cudaStreamCaptureStatusInvalidated
                                 : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    *graph = nullptr;
    const std::lock_guard lock(captures.mutex);
    Capture* const capture = captures.of(stream);
    if (capture == nullptr) return cudaErrorIllegalState;
    if (capture->mode != cudaStreamCaptureModeRelaxed && capture->owner != std::this_thread::get_id())
        return cudaErrorStreamCaptureWrongThread;
    if (stream != capture->origin) {
        capture->spoilt = true;
        return cudaErrorStreamCaptureUnmatched;
    }
    const Capture ended = std::move(*capture);
    captures.active.remove_if([&](const Capture& c) { return c.number == ended.number; });
    --captures.count;
    if (ended.spoilt) return cudaErrorStreamCaptureInvalidated;
    const auto& seen = ended.streams.at(stream);
    for (const auto& [other, before] : ended.streams) {
        const auto own = before.find(other), joined = seen.find(other);
        const size_t nodes = own != before.end() ? own->second : 0;
        if (other != stream && (joined == seen.end() || joined->second < nodes)) return cudaErrorStreamCaptureUnjoined;
    }
    *graph = new EmulatedGraph{ended.nodes};
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
