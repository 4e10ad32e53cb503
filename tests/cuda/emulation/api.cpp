// tests/cuda/emulation/api.cpp: the functions of api.h. Calls are done when they return, but for copies on a stream
// with a priority: those are done when somebody waits for them, as late as a GPU may. An event is a point in time and a
// place in its stream.
#include "tests/cuda/emulation/api.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "tests/cuda/emulation/graph.h"
#include "tests/cuda/emulation/memory.h"

using namespace tutti::emulation;

// What a stream was given and has not begun.
struct Late {
    std::deque<std::function<void()>> waiting;
    int64_t begun = 0;  // of all that it was ever given

    int64_t end() const { return begun + static_cast<int64_t>(waiting.size()); }
    void run_until(int64_t place) {
        for (; begun < place; ++begun) {
            waiting.front()();
            waiting.pop_front();
        }
    }
};
struct EmulatedStream {
    std::shared_ptr<Late> late;  // null: all is done at once
};
struct EmulatedEvent {
    std::chrono::steady_clock::time_point time;
    bool timed = true;
    std::shared_ptr<Late> late;  // the stream that it is in
    int64_t place = 0;

    bool passed() const { return !late || late->begun >= place; }
    void pass() const {
        if (late) late->run_until(place);
    }
};

namespace {

int capability = 90;
thread_local std::vector<std::weak_ptr<Late>> late_streams;  // of the calling thread

// What waits for the whole GPU waits for these.
cudaError_t wait_for_all() {
    if (const cudaError_t no = outside_of_capture(); no != cudaSuccess) return no;
    for (const auto& stream : late_streams)
        if (const auto late = stream.lock()) late->run_until(late->end());
    return cudaSuccess;
}

// Whether `data` is what the kind of a copy says of it. Host memory that CUDA does not know of is left unchecked.
bool fits(const void* data, size_t bytes, bool device, bool any) {
    if (in_device(data)) return (device || any) && in_device_block(data, bytes);
    return !device || any;
}

}  // namespace

void tutti::emulation::set_capability(int major, int minor) { capability = 10 * major + minor; }

const char* cudaGetErrorName(cudaError_t error) {
    switch (error) {
        case cudaSuccess: return "cudaSuccess";
        case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
        case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
        case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
        case cudaErrorInsufficientDriver: return "cudaErrorInsufficientDriver";
        case cudaErrorNoDevice: return "cudaErrorNoDevice";
        case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
        case cudaErrorIllegalState: return "cudaErrorIllegalState";
        case cudaErrorNotReady: return "cudaErrorNotReady";
        case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
        case cudaErrorStreamCaptureInvalidated: return "cudaErrorStreamCaptureInvalidated";
    }
    return "cudaErrorUnknown";
}

const char* cudaGetErrorString(cudaError_t error) {
    switch (error) {
        case cudaSuccess: return "no error";
        case cudaErrorInvalidValue: return "invalid argument";
        case cudaErrorMemoryAllocation: return "out of memory";
        case cudaErrorInvalidConfiguration: return "invalid configuration argument";
        case cudaErrorInsufficientDriver: return "CUDA driver version is insufficient for CUDA runtime version";
        case cudaErrorNoDevice: return "no CUDA-capable device is detected";
        case cudaErrorInvalidDevice: return "invalid device ordinal";
        case cudaErrorIllegalState: return "the operation cannot be performed in the present state";
        case cudaErrorNotReady: return "device not ready";
        case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
        case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error during capture";
    }
    return "unknown error";
}

cudaError_t cudaGetLastError() { return cudaSuccess; }

cudaError_t cudaGetDeviceCount(int* count) {
    *count = 1;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidDevice; }
cudaError_t cudaGetDevice(int* device) {
    *device = 0;
    return cudaSuccess;
}

// The limits are Hopper's.
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
    if (device != 0) return cudaErrorInvalidDevice;
    *properties = {};
    std::snprintf(properties->name, sizeof properties->name, "emulated GPU");
    properties->totalGlobalMem = kDeviceBytes;
    properties->sharedMemPerBlock = 48 << 10;
    properties->sharedMemPerBlockOptin = 227 << 10;
    properties->multiProcessorCount = 132;
    properties->maxThreadsPerBlock = 1024;
    properties->warpSize = 32;
    properties->major = capability / 10;
    properties->minor = capability % 10;
    properties->l2CacheSize = 50 << 20;
    properties->asyncEngineCount = 1;
    properties->memoryBusWidth = 5120;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
    if (device != 0) return cudaErrorInvalidDevice;
    switch (attribute) {
        case cudaDevAttrClockRate: *value = 1'980'000; return cudaSuccess;
        case cudaDevAttrMultiProcessorCount: *value = 132; return cudaSuccess;
        case cudaDevAttrMemoryClockRate: *value = 2'619'000; return cudaSuccess;
        case cudaDevAttrGlobalMemoryBusWidth: *value = 5120; return cudaSuccess;
        case cudaDevAttrComputeCapabilityMajor: *value = capability / 10; return cudaSuccess;
        case cudaDevAttrComputeCapabilityMinor: *value = capability % 10; return cudaSuccess;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 227 << 10; return cudaSuccess;
    }
    return cudaErrorInvalidValue;
}

cudaError_t cudaDeviceSynchronize() { return wait_for_all(); }
cudaError_t cudaDriverGetVersion(int* version) {
    *version = 13000;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }

cudaError_t cudaMalloc(void** data, size_t bytes) {
    if (const cudaError_t no = outside_of_capture(); no != cudaSuccess) return no;
    *data = bytes == 0 ? nullptr : take_device(bytes);
    return bytes == 0 || *data != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void* data) {
    if (const cudaError_t no = wait_for_all(); no != cudaSuccess) return no;
    return data == nullptr || give_device(data) ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaMallocHost(void** data, size_t bytes) {
    if (const cudaError_t no = outside_of_capture(); no != cudaSuccess) return no;
    *data = take_pinned(bytes);
    return *data != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned) { return cudaMallocHost(data, bytes); }
cudaError_t cudaFreeHost(void* data) {
    if (const cudaError_t no = wait_for_all(); no != cudaSuccess) return no;
    return data == nullptr || give_pinned(data) ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    *total = kDeviceBytes;
    *free = kDeviceBytes - device_bytes_in_use();
    return cudaSuccess;
}

namespace {

cudaError_t copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    if (bytes == 0) return cudaSuccess;
    const bool any = kind == cudaMemcpyDefault;
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (!fits(to, bytes, to_device, any) || !fits(from, bytes, from_device, any)) return cudaErrorInvalidValue;
    const DeviceAccess access;
    std::memmove(to, from, bytes);
    return cudaSuccess;
}
cudaError_t set(void* data, int byte, size_t bytes) {
    if (bytes == 0) return cudaSuccess;
    if (!in_device_block(data, bytes) && !in_pinned_block(data, bytes)) return cudaErrorInvalidValue;
    const DeviceAccess access;
    std::memset(data, byte, bytes);
    return cudaSuccess;
}

}  // namespace

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    if (const cudaError_t no = outside_of_capture(); no != cudaSuccess) return no;
    return copy(to, from, bytes, kind);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    if (captured(stream, [=] { copy(to, from, bytes, kind); })) return cudaSuccess;
    if (stream == nullptr || !stream->late) return copy(to, from, bytes, kind);
    stream->late->waiting.emplace_back([=] {
        if (copy(to, from, bytes, kind) == cudaSuccess) return;
        std::fprintf(stderr, "emulated GPU: a copy of %zu bytes beside other work lost its memory\n", bytes);
        std::abort();
    });
    return cudaSuccess;
}
cudaError_t cudaMemset(void* data, int byte, size_t bytes) {
    if (const cudaError_t no = outside_of_capture(); no != cudaSuccess) return no;
    return set(data, byte, bytes);
}
cudaError_t cudaMemsetAsync(void* data, int byte, size_t bytes, cudaStream_t stream) {
    if (captured(stream, [=] { set(data, byte, bytes); })) return cudaSuccess;
    return set(data, byte, bytes);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
    *stream = new EmulatedStream;
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
    *stream = new EmulatedStream{std::make_shared<Late>()};
    std::erase_if(late_streams, [](const auto& late) { return late.expired(); });
    late_streams.push_back((*stream)->late);
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    if (stream->late) stream->late->run_until(stream->late->end());
    delete stream;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    if (stream != nullptr && stream->late) stream->late->run_until(stream->late->end());
    return outside_of_capture();
}
cudaError_t cudaStreamQuery(cudaStream_t) { return outside_of_capture(); }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t event, unsigned) {
    if (event == nullptr) return cudaErrorInvalidValue;
    event->pass();
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
    *event = new EmulatedEvent{.time = {}, .timed = (flags & cudaEventDisableTiming) == 0, .late = nullptr};
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    delete event;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    event->time = std::chrono::steady_clock::now();
    event->late = stream != nullptr ? stream->late : nullptr;
    event->place = event->late ? event->late->end() : 0;
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    event->pass();
    return outside_of_capture();
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
    if (const cudaError_t no = outside_of_capture(); no != cudaSuccess) return no;
    return event->passed() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
    if (!begin->timed || !end->timed) return cudaErrorInvalidValue;
    *milliseconds = std::chrono::duration<float, std::milli>(end->time - begin->time).count();
    return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
    const bool known = std::strcmp(symbol, "cuTensorMapEncodeTiled") == 0;
    *function = known ? reinterpret_cast<void*>(&cuTensorMapEncodeTiled) : nullptr;
    *result = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
