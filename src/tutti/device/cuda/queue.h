// device/cuda/queue.h: one stream of one GPU with the copies on that stream and beside it. Copies use pinned staging
// memory, which the GPU reads and writes by DMA: the host continues as soon as its values are in pinned memory.
#pragma once

#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tutti/device/cuda/runtime.h"
#include "tutti/device/device.h"

namespace tutti::cuda {

// Page-locked memory of the host.
class PinnedMemory final : public RawMemory {
  public:
    void* take(int64_t bytes) override;
    void give_back(void* data, int64_t bytes) override;
    std::string advice() const override;
};

// Events that are not in use: to make and destroy one takes 1 to 2 us each, and an operation of NCCL has three. Any
// thread may take and give.
class SpareEvents {
  public:
    SpareEvents() = default;
    ~SpareEvents();
    SpareEvents(const SpareEvents&) = delete;
    SpareEvents& operator=(const SpareEvents&) = delete;
    cudaEvent_t take(bool timed);
    void give(cudaEvent_t event, bool timed) noexcept;

  private:
    std::mutex mutex_;
    std::vector<cudaEvent_t> events_[2];  // without and with times
};

// A place in the stream. `spare` outlives the event.
class Event {
  public:
    Event(SpareEvents& spare, cudaStream_t stream, bool timed = false);
    ~Event() { spare_.give(event_, timed_); }
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;
    bool passed() const;
    cudaError_t wait() const { return cudaEventSynchronize(event_); }
    cudaError_t milliseconds_since(const Event& before, float& milliseconds) const {  // both are timed
        return cudaEventElapsedTime(&milliseconds, before.event_, event_);
    }
    cudaError_t hold(cudaStream_t stream) const {
        return cudaStreamWaitEvent(stream, event_, 0);
    }  // work queued later on `stream` waits for this event

  private:
    SpareEvents& spare_;
    const bool timed_;
    cudaEvent_t event_ = nullptr;
};

class Queue {
  public:
    explicit Queue(int gpu);
    ~Queue();
    Queue(const Queue&) = delete;
    Queue& operator=(const Queue&) = delete;

    int gpu() const { return gpu_; }
    const std::string& model() const { return model_; }  // "NVIDIA H100 80GB HBM3"
    const std::string& name() const { return name_; }    // "GPU 0 (NVIDIA H100 80GB HBM3)"
    cudaStream_t stream() const { return stream_; }

    void copy_in(void* device_data, const void* host_data, int64_t bytes);
    void copy_out(void* host_data, const void* device_data, int64_t bytes);
    std::unique_ptr<PendingHostCopy> copy_to_host_async(const void* device_data, int64_t bytes);
    void copy(void* to, const void* from, int64_t bytes);                             // both on the GPU
    std::shared_ptr<SideWork> copy_async(void* to, const void* from, int64_t bytes);  // one on the GPU, one pinned
    std::unique_ptr<SideStream> side_stream();
    std::unique_ptr<TimeMark> mark_time();
    void synchronize();
    void fail(std::exception_ptr why);
    // Returns when no work beside the stream is in flight, or the device has failed. To be called before cudaFree,
    // which waits for the whole GPU and may hold the driver's lock meanwhile: the thread that watches NCCL's operations
    // could then neither see nor end one that hangs.
    void wait_for_sides() noexcept;

  private:
    // A pinned block and the place in the stream after which the block is free.
    struct StagingBlock {
        StagingBlock(Queue& queue, int64_t bytes) : block(*queue.pinned_, bytes, Purpose::communication) {}
        void* data() const { return block.data(); }
        Buffer block;
        std::optional<Event> done;
    };
    class Copy;
    class StreamWork;
    class Side;
    class Mark;

    void copy(void* to, const void* from, int64_t bytes, StagingBlock& block);
    // For calls that any thread may make. GPU 0 is current in a new thread: events would be made there, and the first
    // call of CUDA takes half a gigabyte of its memory for a context.
    void make_current() const;
    void check_not_recorded(const char* what) const;
    void check_failed() const;
    void wait(const StagingBlock& block) const;
    int64_t host_time_of(const Event& event) const;  // of a timed one that has passed; any thread may ask

    int gpu_;
    std::string model_, name_;
    cudaStream_t stream_ = nullptr;
    cudaStream_t copy_stream_ = nullptr;  // made by the first copy_async
    cudaStream_t clock_ = nullptr;        // of host_time_of; made with the first side stream
    mutable SpareEvents events_;
    std::shared_ptr<Allocator> pinned_;
    std::mutex sides_mutex_;
    std::vector<cudaStream_t> sides_;                 // of the side streams that live
    std::deque<std::unique_ptr<StagingBlock>> sent_;  // by copy_in; the GPU may still be reading their blocks
    mutable std::mutex failure_mutex_;
    std::exception_ptr failure_;
};

}  // namespace tutti::cuda
