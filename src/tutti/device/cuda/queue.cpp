#include "tutti/device/cuda/queue.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <thread>

namespace tutti::cuda {

namespace {

// 4 MiB take 80 us on a bus of 50 GB/s, much longer than the start of a copy. At most 64 MiB of copies to the GPU are
// in flight before the host waits.
constexpr int64_t kPiece = 4 << 20;
constexpr size_t kMostSent = 16;

std::string model_of_gpu(int gpu) {
    cudaDeviceProp properties{};
    check_cuda(cudaGetDeviceProperties(&properties, gpu), "cudaGetDeviceProperties of GPU ", gpu);
    return properties.name;
}

}  // namespace

void* PinnedMemory::take(int64_t bytes) {
    void* data = nullptr;
    if (cudaMallocHost(&data, static_cast<size_t>(bytes)) == cudaSuccess) return data;
    cudaGetLastError();
    return nullptr;
}

void PinnedMemory::give_back(void* data, int64_t) { cudaFreeHost(data); }

std::string PinnedMemory::advice() const { return "pinned memory of the host: offload less, or use a larger host"; }

SpareEvents::~SpareEvents() {
    for (const auto& events : events_)
        for (cudaEvent_t event : events) cudaEventDestroy(event);
}

cudaEvent_t SpareEvents::take(bool timed) {
    {
        const std::lock_guard lock(mutex_);
        std::vector<cudaEvent_t>& events = events_[timed];
        if (!events.empty()) {
            cudaEvent_t event = events.back();
            events.pop_back();
            return event;
        }
    }
    cudaEvent_t event = nullptr;
    check_cuda(cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming), "cudaEventCreate");
    return event;
}

// An event may be recorded again while streams wait for its last place: a wait is for the place of its own time.
void SpareEvents::give(cudaEvent_t event, bool timed) noexcept {
    const std::lock_guard lock(mutex_);
    events_[timed].push_back(event);
}

Event::Event(SpareEvents& spare, cudaStream_t stream, bool timed)
    : spare_(spare), timed_(timed), event_(spare.take(timed)) {
    if (const cudaError_t status = cudaEventRecord(event_, stream); status != cudaSuccess) {
        spare.give(event_, timed);
        check_cuda(status, "cudaEventRecord");
    }
}

bool Event::passed() const {
    const cudaError_t status = cudaEventQuery(event_);
    if (status != cudaSuccess) cudaGetLastError();  // "not ready" counts as an error there
    return status == cudaSuccess;
}

// --- the queue -------------------------------------------------------------------------------------------------------

Queue::Queue(int gpu)
    : gpu_(gpu),
      model_(model_of_gpu(gpu)),
      name_(concat("GPU ", gpu, " (", model_, ")")),
      pinned_(std::make_shared<Allocator>(std::make_unique<PinnedMemory>())) {
    make_current();
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate on ", name_);
}

Queue::~Queue() {
    for (cudaStream_t stream : {stream_, copy_stream_, clock_})
        if (stream != nullptr) {
            cudaStreamSynchronize(stream);
            cudaStreamDestroy(stream);
        }
}

// A recorded copy would replay with the pinned block of the recording, and CUDA's own message for a wait is a number.
void Queue::check_not_recorded(const char* what) const {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    check_cuda(cudaStreamIsCapturing(stream_, &status), "cudaStreamIsCapturing on ", name_);
    check(status == cudaStreamCaptureStatusNone, what, " while work of ", name_,
          " is recorded: a CUDA graph holds kernels and copies within the GPU only; set train.cuda_graphs = false");
}

void Queue::copy(void* to, const void* from, int64_t bytes) {
    check_cuda(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream_), "cudaMemcpyAsync of ",
               bytes, " bytes within ", name_);
}

void Queue::synchronize() {
    check_not_recorded("a wait");
    check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize on ", name_);
    if (copy_stream_ != nullptr)
        check_cuda(cudaStreamSynchronize(copy_stream_), "cudaStreamSynchronize of the copies on ", name_);
    check_failed();
}

void Queue::fail(std::exception_ptr why) {
    const std::lock_guard lock(failure_mutex_);
    if (!failure_) failure_ = std::move(why);
}

void Queue::wait_for_sides() noexcept {
    const std::lock_guard sides_lock(sides_mutex_);
    for (cudaStream_t side : sides_)
        while (cudaStreamQuery(side) == cudaErrorNotReady) {
            cudaGetLastError();  // "not ready" counts as an error there
            {
                const std::lock_guard lock(failure_mutex_);
                if (failure_) return;
            }
            std::this_thread::sleep_for(std::chrono::microseconds(100));
        }
}

void Queue::check_failed() const {
    const std::lock_guard lock(failure_mutex_);
    if (failure_) std::rethrow_exception(failure_);
}

// The work that `stream` was given since `begin`, timed or not.
class Queue::StreamWork final : public SideWork {
  public:
    StreamWork(const Queue& queue, cudaStream_t stream, std::shared_ptr<Event> begin, bool timed = false)
        : queue_(queue), begin_(std::move(begin)), timed_(timed), done_(queue.events_, stream, timed) {}
    void join() override { check_cuda(done_.hold(queue_.stream_), "cudaStreamWaitEvent for a copy on ", queue_.name_); }
    bool begun() override {
        queue_.make_current();
        return begin_->passed();
    }
    bool done() override {
        queue_.make_current();
        return done_.passed();
    }
    std::optional<TimeSpan> times() override {
        if (!timed_) return std::nullopt;
        return TimeSpan{queue_.host_time_of(*begin_), queue_.host_time_of(done_)};
    }

  private:
    const Queue& queue_;
    const std::shared_ptr<Event> begin_;
    const bool timed_;
    Event done_;
};

// Has the highest priority: kernels fill the time that communication leaves, and not the reverse.
class Queue::Side final : public SideStream {
  public:
    explicit Side(Queue& queue) : queue_(queue) {
        int least = 0, greatest = 0;
        check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
        check_cuda(cudaStreamCreateWithPriority(&side_, cudaStreamNonBlocking, greatest), "cudaStreamCreate on ",
                   queue.name_);
        stream_.native = side_;
        const std::lock_guard lock(queue_.sides_mutex_);
        queue_.sides_.push_back(side_);
    }
    ~Side() override {
        {
            const std::lock_guard lock(queue_.sides_mutex_);
            std::erase(queue_.sides_, side_);
        }
        cudaStreamSynchronize(side_);
        cudaStreamDestroy(side_);
    }
    Side(const Side&) = delete;
    Side& operator=(const Side&) = delete;

    void begin(bool timed) override {
        queue_.check_not_recorded("work beside the stream");
        check_cuda(Event(queue_.events_, queue_.stream_).hold(side_), "cudaStreamWaitEvent on ", queue_.name_);
        begin_ = std::make_shared<Event>(queue_.events_, side_, timed);
        timed_ = timed;
    }
    std::shared_ptr<SideWork> end() override { return std::make_shared<StreamWork>(queue_, side_, begin_, timed_); }
    const Stream& stream() const override { return stream_; }

  private:
    Queue& queue_;
    cudaStream_t side_ = nullptr;
    Stream stream_;
    std::shared_ptr<Event> begin_;
    bool timed_ = false;
};

class Queue::Mark final : public TimeMark {
  public:
    explicit Mark(const Queue& queue) : queue_(queue), event_(queue.events_, queue.stream_, true) {}
    double seconds_since(const TimeMark& before) const override {
        check_cuda(event_.wait(), "cudaEventSynchronize on ", queue_.name_);
        float milliseconds = 0;
        check_cuda(event_.milliseconds_since(static_cast<const Mark&>(before).event_, milliseconds),
                   "cudaEventElapsedTime on ", queue_.name_);
        return static_cast<double>(milliseconds) / 1000;
    }

  private:
    const Queue& queue_;
    Event event_;
};

std::unique_ptr<TimeMark> Queue::mark_time() {
    check_not_recorded("a mark of time");
    return std::make_unique<Mark>(*this);
}

std::unique_ptr<SideStream> Queue::side_stream() {
    if (clock_ == nullptr)
        check_cuda(cudaStreamCreateWithFlags(&clock_, cudaStreamNonBlocking), "cudaStreamCreate on ", name_);
    return std::make_unique<Side>(*this);
}

void Queue::make_current() const { check_cuda(cudaSetDevice(gpu_), "cudaSetDevice of ", name_); }

// A stream without other work passes an event at once, however busy the GPU is.
int64_t Queue::host_time_of(const Event& event) const {
    make_current();
    const Event now(events_, clock_, true);
    check_cuda(now.wait(), "cudaEventSynchronize on ", name_);
    const int64_t now_ns = Trace::now_ns();
    float milliseconds = 0;
    check_cuda(now.milliseconds_since(event, milliseconds), "cudaEventElapsedTime on ", name_);
    return now_ns - static_cast<int64_t>(1e6 * static_cast<double>(milliseconds));
}

std::shared_ptr<SideWork> Queue::copy_async(void* to, const void* from, int64_t bytes) {
    check_not_recorded("a copy between the host and the GPU");
    if (copy_stream_ == nullptr)  // 0: the lowest priority
        check_cuda(cudaStreamCreateWithPriority(&copy_stream_, cudaStreamNonBlocking, 0), "cudaStreamCreate on ",
                   name_);
    check_cuda(Event(events_, stream_).hold(copy_stream_), "cudaStreamWaitEvent on ", name_);
    const auto begin = std::make_shared<Event>(events_, copy_stream_);
    check_cuda(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, copy_stream_),
               "cudaMemcpyAsync of ", bytes, " bytes on the copy stream of ", name_);
    return std::make_shared<StreamWork>(*this, copy_stream_, begin);
}

void Queue::copy(void* to, const void* from, int64_t bytes, StagingBlock& block) {
    check_cuda(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream_), "cudaMemcpyAsync of ",
               bytes, " bytes on ", name_);
    block.done.emplace(events_, stream_);
}

void Queue::wait(const StagingBlock& block) const {
    check_cuda(block.done->wait(), "cudaEventSynchronize on ", name_);
    check_failed();
}

void Queue::copy_in(void* device_data, const void* host_data, int64_t bytes) {
    check_not_recorded("a copy between the host and the GPU");
    for (int64_t at = 0; at < bytes; at += kPiece) {
        const int64_t n = std::min(kPiece, bytes - at);
        while (!sent_.empty() && (sent_.size() >= kMostSent || sent_.front()->done->passed())) {
            wait(*sent_.front());
            sent_.pop_front();
        }
        auto block = std::make_unique<StagingBlock>(*this, n);
        std::memcpy(block->data(), static_cast<const std::byte*>(host_data) + at, static_cast<size_t>(n));
        copy(static_cast<std::byte*>(device_data) + at, block->data(), n, *block);
        sent_.push_back(std::move(block));
    }
}

// One piece crosses the bus while the host copies the previous one out of its block.
void Queue::copy_out(void* host_data, const void* device_data, int64_t bytes) {
    check_not_recorded("a copy between the host and the GPU");
    std::array<std::unique_ptr<StagingBlock>, 2> pieces;
    for (auto& piece : pieces) piece = std::make_unique<StagingBlock>(*this, std::min(kPiece, bytes));
    const auto take = [&](int64_t at) {
        const StagingBlock& piece = *pieces[static_cast<size_t>(at / kPiece % 2)];
        wait(piece);
        std::memcpy(static_cast<std::byte*>(host_data) + at, piece.data(),
                    static_cast<size_t>(std::min(kPiece, bytes - at)));
    };
    for (int64_t at = 0; at < bytes; at += kPiece) {
        StagingBlock& piece = *pieces[static_cast<size_t>(at / kPiece % 2)];
        copy(piece.data(), static_cast<const std::byte*>(device_data) + at, std::min(kPiece, bytes - at), piece);
        if (at > 0) take(at - kPiece);
    }
    if (bytes > 0) take((bytes - 1) / kPiece * kPiece);
}

class Queue::Copy final : public PendingHostCopy {
  public:
    Copy(const Queue& queue, std::unique_ptr<StagingBlock> block, int64_t bytes)
        : queue_(queue), block_(std::move(block)), bytes_(bytes) {}
    ~Copy() override {  // its block must not be used again while the GPU writes there
        if (block_->done) block_->done->wait();
    }
    std::span<const std::byte> wait() override {
        if (block_->done) queue_.wait(*block_);
        return {static_cast<const std::byte*>(block_->data()), static_cast<size_t>(bytes_)};
    }

  private:
    const Queue& queue_;
    std::unique_ptr<StagingBlock> block_;
    int64_t bytes_;
};

std::unique_ptr<PendingHostCopy> Queue::copy_to_host_async(const void* device_data, int64_t bytes) {
    check_not_recorded("a copy between the host and the GPU");
    auto block = std::make_unique<StagingBlock>(*this, bytes);
    if (bytes > 0) copy(block->data(), device_data, bytes, *block);
    return std::make_unique<Copy>(*this, std::move(block), bytes);
}

}  // namespace tutti::cuda
