// tests/cuda/emulation/api.cpp: the functions of api.h. Work on a stream runs when the host or another stream waits for
// it, as late as a GPU may run it; a stream with a priority has a thread that starts work some time after it was
// queued, since work that no thread waits for must proceed too (stream.h). An event is a place in its stream.
#include "tests/cuda/emulation/api.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tests/cuda/emulation/graph.h"
#include "tests/cuda/emulation/memory.h"
#include "tests/cuda/emulation/stream.h"

using namespace tutti::emulation;

struct EmulatedStream {
    std::shared_ptr<Late> late;
};
// A place in a stream; before it is recorded, a place that has passed.
struct Mark {
    std::shared_ptr<Late> late;
    int64_t place = 0;
    std::chrono::steady_clock::time_point time;  // when the stream came to it

    bool passed() const { return !late || late->done_until(place); }
    void pass() const {
        if (late) late->run_until(place);
    }
};
struct EmulatedEvent {
    bool timed = true, recorded = false;
    std::shared_ptr<Mark> mark = std::make_shared<Mark>();
    CapturedPlace captured = {};
};

namespace {

int of_capability = 90;
const char* model = "emulated GPU";
int gpus = 1;
std::atomic<int64_t> passed_ns{0};  // by pass_time
std::atomic<int64_t> waits{0}, idle_waits{0};
std::atomic<int64_t> launches{0}, order_calls{0}, copy_calls{0}, made{0};  // host_calls()
thread_local int current = 0;
// Waits for the whole GPU wait for all its streams.
cudaError_t wait_for_all() {
    if (const cudaError_t no = outside_of_capture(); no != cudaSuccess) return no;
    finish_gpu(current);
    return cudaSuccess;
}

// Whether `data` matches the kind of the copy. Host memory that CUDA does not know is not checked.
bool fits(const void* data, size_t bytes, bool device, bool any) {
    if (in_device(data)) return (device || any) && in_device_block(data, bytes);
    return !device || any;
}

}  // namespace

void tutti::emulation::enqueue(cudaStream_t stream, std::function<void()> item) {
    if (stream == nullptr) return item();
    stream->late->add(std::move(item));
}

HostWaits tutti::emulation::host_waits() { return {waits, idle_waits}; }
HostCalls tutti::emulation::host_calls() { return {launches, order_calls, copy_calls, made}; }
void tutti::emulation::count_launch() { ++launches; }

void tutti::emulation::pass_time(double seconds) { passed_ns += static_cast<int64_t>(1e9 * seconds); }

void tutti::emulation::set_gpus(int count) { gpus = count; }

void tutti::emulation::set_capability(int major, int minor, const char* name) {
    of_capability = 10 * major + minor;
    model = name;
}

int tutti::emulation::capability() { return of_capability; }

void tutti::emulation::load_module(const void* kernel) {
    if (first_launch(current, kernel)) finish_gpu(current);
}

// CUDA C++ programming guide, "Technical specifications per compute capability".
size_t tutti::emulation::most_shared_bytes() {
    switch (of_capability) {
        case 80: return 163 << 10;
        case 86:
        case 89:
        case 120: return 99 << 10;
        default: return 227 << 10;
    }
}

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
        case cudaErrorStreamCaptureMerge: return "cudaErrorStreamCaptureMerge";
        case cudaErrorStreamCaptureUnmatched: return "cudaErrorStreamCaptureUnmatched";
        case cudaErrorStreamCaptureUnjoined: return "cudaErrorStreamCaptureUnjoined";
        case cudaErrorStreamCaptureIsolation: return "cudaErrorStreamCaptureIsolation";
        case cudaErrorCapturedEvent: return "cudaErrorCapturedEvent";
        case cudaErrorStreamCaptureWrongThread: return "cudaErrorStreamCaptureWrongThread";
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
        case cudaErrorStreamCaptureMerge: return "operation would result in a merge of separate capture sequences";
        case cudaErrorStreamCaptureUnmatched: return "capture was not ended in the same stream as it began";
        case cudaErrorStreamCaptureUnjoined: return "capturing stream has unjoined work";
        case cudaErrorStreamCaptureIsolation: return "dependency created on uncaptured work in another stream";
        case cudaErrorCapturedEvent: return "operation not permitted on an event last recorded in a capturing stream";
        case cudaErrorStreamCaptureWrongThread:
            return "attempt to terminate a thread-local capture sequence from another thread";
    }
    return "unknown error";
}

cudaError_t cudaGetLastError() { return cudaSuccess; }

cudaError_t cudaGetDeviceCount(int* count) {
    *count = gpus;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= gpus) return cudaErrorInvalidDevice;
    current = device;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
    *device = current;
    return cudaSuccess;
}

// The limits are Hopper's, but for a block's shared memory.
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
    if (device < 0 || device >= gpus) return cudaErrorInvalidDevice;
    *properties = {};
    properties->uuid.bytes[0] = static_cast<char>(device);
    std::snprintf(properties->name, sizeof properties->name, "%s", model);
    properties->totalGlobalMem = kDeviceBytes;
    properties->sharedMemPerBlock = 48 << 10;
    properties->sharedMemPerBlockOptin = most_shared_bytes();
    properties->multiProcessorCount = 132;
    properties->maxThreadsPerBlock = 1024;
    properties->warpSize = 32;
    properties->major = of_capability / 10;
    properties->minor = of_capability % 10;
    properties->l2CacheSize = 50 << 20;
    properties->asyncEngineCount = 1;
    properties->memoryBusWidth = 5120;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
    if (device < 0 || device >= gpus) return cudaErrorInvalidDevice;
    switch (attribute) {
        case cudaDevAttrClockRate: *value = 1'980'000; return cudaSuccess;
        case cudaDevAttrMultiProcessorCount: *value = 132; return cudaSuccess;
        case cudaDevAttrMemoryClockRate: *value = 2'619'000; return cudaSuccess;
        case cudaDevAttrGlobalMemoryBusWidth: *value = 5120; return cudaSuccess;
        case cudaDevAttrComputeCapabilityMajor: *value = of_capability / 10; return cudaSuccess;
        case cudaDevAttrComputeCapabilityMinor: *value = of_capability % 10; return cudaSuccess;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin:
            *value = static_cast<int>(most_shared_bytes());
            return cudaSuccess;
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
    ++made;
    if (const cudaError_t no = outside_of_capture(); no != cudaSuccess) return no;
    *data = bytes == 0 ? nullptr : take_device(bytes);
    return bytes == 0 || *data != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void* data) {
    ++made;
    if (const cudaError_t no = wait_for_all(); no != cudaSuccess) return no;
    return data == nullptr || give_device(data) ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaMallocHost(void** data, size_t bytes) {
    ++made;
    if (const cudaError_t no = outside_of_capture(); no != cudaSuccess) return no;
    *data = take_pinned(bytes);
    return *data != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned) { return cudaMallocHost(data, bytes); }
cudaError_t cudaFreeHost(void* data) {
    ++made;
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
    const DeviceAccess of_to(to, bytes), of_from(from, bytes);
    std::memmove(to, from, bytes);
    return cudaSuccess;
}
cudaError_t set(void* data, int byte, size_t bytes) {
    if (bytes == 0) return cudaSuccess;
    if (!in_device_block(data, bytes) && !in_pinned_block(data, bytes)) return cudaErrorInvalidValue;
    const DeviceAccess access(data, bytes);
    std::memset(data, byte, bytes);
    return cudaSuccess;
}

}  // namespace

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    ++copy_calls;
    if (const cudaError_t no = outside_of_capture(); no != cudaSuccess) return no;
    return copy(to, from, bytes, kind);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    ++copy_calls;
    if (captured(stream, [=] { copy(to, from, bytes, kind); })) return cudaSuccess;
    const auto late = [](const void* end) { return in_device(end) || in_pinned_block(end, 1); };
    if (stream != nullptr && bytes > 0 && (!late(to) || !late(from))) stream->late->run_all();  // memory that may move
    if (stream == nullptr || bytes == 0 || !late(to) || !late(from)) return copy(to, from, bytes, kind);
    enqueue(stream, [=] {
        if (copy(to, from, bytes, kind) == cudaSuccess) return;
        std::fprintf(stderr, "emulated GPU: a copy of %zu bytes lost its memory before it was done\n", bytes);
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
    if (bytes > 0 && !in_device_block(data, bytes) && !in_pinned_block(data, bytes)) return cudaErrorInvalidValue;
    enqueue(stream, [=] { set(data, byte, bytes); });
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
    ++made;
    *stream = new EmulatedStream{make_stream(current, false)};
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
    ++made;
    *stream = new EmulatedStream{make_stream(current, true)};
    return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    ++made;
    stream->late->run_all();
    delete stream;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    if (const cudaError_t no = outside_of_capture(); no != cudaSuccess) return no;
    if (stream != nullptr) stream->late->run_all();
    return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
    if (const cudaError_t no = outside_of_capture(); no != cudaSuccess) return no;
    return stream == nullptr || stream->late->done_until(stream->late->end()) ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    ++order_calls;
    if (event == nullptr) return cudaErrorInvalidValue;
    if (const auto result = wait_captured(stream, event->captured, event->recorded)) return *result;
    const auto mark = event->mark;
    if (mark->passed()) return cudaSuccess;
    if (stream == nullptr)
        mark->pass();
    else
        stream->late->add([mark] { mark->pass(); }, Late::Kind::wait);
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
    ++made;
    *event = new EmulatedEvent{.timed = (flags & cudaEventDisableTiming) == 0};
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    ++made;
    delete event;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    ++order_calls;
    event->mark = std::make_shared<Mark>();
    event->recorded = true;
    if (record_captured(stream, event->captured)) return cudaSuccess;
    const auto stamp = [](Mark& mark) {
        mark.time = std::chrono::steady_clock::now() + std::chrono::nanoseconds(passed_ns);
    };
    if (stream == nullptr) {
        stamp(*event->mark);
        return cudaSuccess;
    }
    event->mark->late = stream->late;
    event->mark->place = stream->late->add([mark = std::weak_ptr(event->mark), stamp] {
        if (const auto it = mark.lock()) stamp(*it);
    });
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    if (const cudaError_t no = outside_of_capture(); no != cudaSuccess) return no;
    if (event->captured.capture != 0) return cudaErrorCapturedEvent;
    const Mark& mark = *event->mark;
    if (!mark.passed()) {
        ++waits;
        idle_waits += mark.late->end() == mark.place;
    }
    mark.pass();
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
    if (const cudaError_t no = outside_of_capture(); no != cudaSuccess) return no;
    if (event->captured.capture != 0) return cudaErrorCapturedEvent;
    return event->mark->passed() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
    if (!begin->timed || !end->timed) return cudaErrorInvalidValue;
    if (!begin->mark->passed() || !end->mark->passed()) return cudaErrorNotReady;
    *milliseconds = std::chrono::duration<float, std::milli>(end->mark->time - begin->mark->time).count();
    return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
    const bool known = std::strcmp(symbol, "cuTensorMapEncodeTiled") == 0;
    *function = known ? reinterpret_cast<void*>(&cuTensorMapEncodeTiled) : nullptr;
    *result = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
