// tests/cuda/emulation/api.cpp: the functions of api.h. Work on a stream runs when the host or another stream waits for
// it, as late as a GPU may run it; a stream with a priority has a thread that starts work kLateness after it was
// queued, since work that no thread waits for must proceed too. An event is a place in its stream.
#include "tests/cuda/emulation/api.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cuda/emulation/graph.h"
#include "tests/cuda/emulation/memory.h"

using namespace tutti::emulation;

// The queued work of a stream. Any thread may run the next item; the others wait for it.
class Late {
  public:
    ~Late() {
        {
            const std::lock_guard lock(mutex_);
            ending_ = true;
        }
        changed_.notify_all();
        if (worker_.joinable()) worker_.join();
    }
    void work_alone() {
        worker_ = std::thread([this] { run_alone(); });
    }
    // Returns the place after the item.
    int64_t add(std::function<void()> item) {
        int64_t place = 0;
        {
            const std::lock_guard lock(mutex_);
            waiting_.push_back(std::move(item));
            newest_ = Clock::now();
            place = given();
        }
        changed_.notify_all();
        return place;
    }
    int64_t end() const {
        const std::lock_guard lock(mutex_);
        return given();
    }
    bool done_until(int64_t place) const {
        const std::lock_guard lock(mutex_);
        return done_ >= place;
    }
    // Rethrows an exception of an item.
    void run_until(int64_t place) {
        std::unique_lock lock(mutex_);
        while (done_ < place) {
            if (busy_) {
                changed_.wait(lock);
                continue;
            }
            run_next(lock);
        }
        if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
    }
    void run_all() { run_until(end()); }

  private:
    using Clock = std::chrono::steady_clock;

    int64_t given() const { return done_ + (busy_ ? 1 : 0) + static_cast<int64_t>(waiting_.size()); }
    void run_next(std::unique_lock<std::mutex>& lock) {
        const std::function<void()> item = std::move(waiting_.front());
        waiting_.pop_front();
        busy_ = true;
        lock.unlock();
        std::exception_ptr thrown;
        try {
            item();
        } catch (...) {
            thrown = std::current_exception();
        }
        lock.lock();
        if (thrown && !failure_) failure_ = thrown;
        busy_ = false;
        ++done_;
        changed_.notify_all();
    }
    void run_alone() {
        std::unique_lock lock(mutex_);
        while (!ending_) {
            if (busy_ || waiting_.empty())
                changed_.wait(lock);
            else if (Clock::now() < newest_ + kLateness)
                changed_.wait_until(lock, newest_ + kLateness);
            else
                run_next(lock);
        }
    }

    static constexpr std::chrono::milliseconds kLateness{2};
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> waiting_;
    int64_t done_ = 0;  // of all items ever queued
    bool busy_ = false, ending_ = false;
    Clock::time_point newest_;
    std::exception_ptr failure_;
    std::thread worker_;
};
struct EmulatedStream {
    std::shared_ptr<Late> late = std::make_shared<Late>();
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
    bool timed = true;
    std::shared_ptr<Mark> mark = std::make_shared<Mark>();
};

namespace {

int capability = 90;
const char* model = "emulated GPU";
int gpus = 1;
std::atomic<int64_t> passed_ns{0};  // by pass_time
std::atomic<int64_t> waits{0}, idle_waits{0};
std::atomic<int64_t> launches{0}, order_calls{0}, copy_calls{0}, made{0};  // host_calls()
thread_local int current = 0;
// State of the calling thread. Static arrays are freed after the thread's variables are destroyed.
thread_local bool streams_are_gone = false;
struct Streams : std::vector<std::weak_ptr<Late>> {
    ~Streams() { streams_are_gone = true; }
};
thread_local Streams late_streams;

// Waits for the whole GPU wait for these.
cudaError_t wait_for_all() {
    if (const cudaError_t no = outside_of_capture(); no != cudaSuccess || streams_are_gone) return no;
    for (const auto& stream : late_streams)
        if (const auto late = stream.lock()) late->run_all();
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
    capability = 10 * major + minor;
    model = name;
}

// CUDA C++ programming guide, "Technical specifications per compute capability".
size_t tutti::emulation::most_shared_bytes() {
    switch (capability) {
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
    properties->major = capability / 10;
    properties->minor = capability % 10;
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
        case cudaDevAttrComputeCapabilityMajor: *value = capability / 10; return cudaSuccess;
        case cudaDevAttrComputeCapabilityMinor: *value = capability % 10; return cudaSuccess;
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
    return data == nullptr || give_device(data) || give_pinned(data) ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaMallocHost(void** data, size_t bytes) {
    ++made;
    if (const cudaError_t no = outside_of_capture(); no != cudaSuccess) return no;
    *data = take_pinned(bytes);
    return *data != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}
// Memory of both sides, as pinned memory is.
cudaError_t cudaMallocManaged(void** data, size_t bytes, unsigned) { return cudaMallocHost(data, bytes); }
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
    *stream = new EmulatedStream;
    std::erase_if(late_streams, [](const auto& late) { return late.expired(); });
    late_streams.push_back((*stream)->late);
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
    cudaStreamCreateWithFlags(stream, flags);
    (*stream)->late->work_alone();
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
    const auto mark = event->mark;
    if (captured(stream, [mark] { mark->pass(); })) return cudaSuccess;
    if (!mark->passed()) enqueue(stream, [mark] { mark->pass(); });
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
