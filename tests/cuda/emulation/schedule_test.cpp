// Orders that are drawn, streams that go on by themselves and share the hardware's queues, waits for a whole GPU, and
// captures: the emulation shows what a GPU may do, and what CUDA forbids.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "tests/cuda/emulation/hopper.h"
#include "tutti/device/cuda/cuda_device.h"
#include "tutti/device/cuda/launch.h"

namespace tutti {
namespace {

using emulation::Order;
using emulation::Place;

class Ints {
  public:
    explicit Ints(size_t count, int value = 0) : count_(count) {
        void* data = nullptr;
        check_cuda(cudaMallocHost(&data, count * sizeof(int)), "cudaMallocHost");
        data_ = static_cast<int*>(data);
        std::fill_n(data_, count, value);
    }
    ~Ints() { cudaFreeHost(data_); }
    Ints(const Ints&) = delete;
    Ints& operator=(const Ints&) = delete;
    int* data() const { return data_; }
    std::vector<int> values() const { return {data_, data_ + count_}; }

  private:
    size_t count_;
    int* data_ = nullptr;
};

// The first lane of each warp of each block writes down when it came.
__global__ void come(int* next, int* came) {
    const int warps = static_cast<int>(blockDim.x) / 32, block = static_cast<int>(blockIdx.x);
    if (threadIdx.x % 32 == 0) came[block * warps + static_cast<int>(threadIdx.x) / 32] = (*next)++;
}

std::vector<int> arrivals(const emulation::Schedule& schedule, unsigned blocks, unsigned warps) {
    const Ints next(1), came(blocks * warps);
    emulation::set_schedule(schedule);
    launch(come, {.blocks = dim3(blocks), .threads = dim3(32 * warps)}, Stream{}, next.data(), came.data());
    emulation::set_order(Order::forward);
    return came.values();
}

// What runs last to first and first to last finds two of the six orders of three blocks, and of three warps.
TEST(Schedules, DrawEveryOrderOfBlocksAndOfWarps) {
    for (const auto& [blocks, warps] : {std::pair(3u, 1u), {1u, 3u}}) {
        std::set<std::vector<int>> seen;
        for (uint64_t seed = 1; seed <= 100; ++seed) seen.insert(arrivals({Order::random, seed}, blocks, warps));
        EXPECT_EQ(seen.size(), 6u);
        EXPECT_EQ(arrivals({Order::forward}, blocks, warps), (std::vector<int>{0, 1, 2}));
        EXPECT_EQ(arrivals({Order::backward}, blocks, warps), (std::vector<int>{2, 1, 0}));
    }
    EXPECT_EQ(arrivals({Order::random, 7}, 5, 5), arrivals({Order::random, 7}, 5, 5));
}

__global__ void copy_and_look(int* to, int* seen) {
    auto* const shared = reinterpret_cast<float*>(dynamic_shared());
    if (threadIdx.x < 4) shared[threadIdx.x] = 1;
    __syncthreads();
    if (threadIdx.x == 0) emulation::copy_out(reinterpret_cast<float*>(to), shared, 16, false);
    for (int i = 0; i < 8; ++i) __syncthreads();
    if (threadIdx.x == 0) {
        *seen = *to != 0;
        emulation::wait_until_written(Place::current());
    }
}

// A copy that is not waited for may have arrived all the same.
TEST(Schedules, LetHardwareActAtAnyTime) {
    std::map<int, int> times;
    for (uint64_t seed = 0; seed <= 40; ++seed) {
        const Ints to(4), seen(1);
        emulation::set_schedule(seed == 0 ? emulation::Schedule{} : emulation::Schedule{Order::random, seed});
        launch(copy_and_look, {.blocks = dim3(1), .threads = dim3(64), .shared_bytes = 64}, Stream{}, to.data(),
               seen.data());
        emulation::set_order(Order::forward);
        if (seed == 0)
            EXPECT_EQ(seen.values()[0], 0);
        else
            ++times[seen.values()[0]];
    }
    EXPECT_GE(times[0], 5);
    EXPECT_GE(times[1], 5);
}

// --- streams ---------------------------------------------------------------------------------------------------------

class Streams : public ::testing::Test {
  protected:
    ~Streams() override {
        emulation::set_rules({});
        for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
    }
    void make(const emulation::StreamRules& rules, size_t count) {
        emulation::set_rules(rules);
        for (size_t i = 0; i < count; ++i) cudaStreamCreateWithFlags(&streams_.emplace_back(), cudaStreamNonBlocking);
    }
    // Stream 0 waits for an event of stream 1, which a host thread lets pass after a while; the last stream has other
    // work. Whether that work began before.
    bool begins_beside_a_wait(int hardware_queues) {
        make({.alone = true, .hardware_queues = hardware_queues}, 3);
        std::atomic<bool> passed{false}, before{false};
        emulation::enqueue(streams_[1], [&] {
            while (!passed) std::this_thread::yield();
        });
        cudaEvent_t event = nullptr;
        cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
        cudaEventRecord(event, streams_[1]);
        cudaStreamWaitEvent(streams_[0], event);
        emulation::enqueue(streams_[2], [&] { before = !passed; });
        std::thread later([&] {
            for (int ms = 0; ms < 100 && !before; ++ms) std::this_thread::sleep_for(std::chrono::milliseconds(1));
            passed = true;
        });
        for (cudaStream_t stream : streams_) cudaStreamSynchronize(stream);
        later.join();
        cudaEventDestroy(event);
        return before;
    }

    std::vector<cudaStream_t> streams_;
};

TEST_F(Streams, ThatWaitHoldBackWhoSharesTheirQueue) { EXPECT_FALSE(begins_beside_a_wait(2)); }
TEST_F(Streams, WithQueuesOfTheirOwnDoNot) { EXPECT_TRUE(begins_beside_a_wait(3)); }
TEST_F(Streams, HaveTheirOwnQueuesWithoutARule) { EXPECT_TRUE(begins_beside_a_wait(0)); }

TEST_F(Streams, GoOnByThemselvesInADrawnOrder) {
    std::set<std::array<int, 2>> orders;
    for (uint64_t seed = 1; seed <= 60 && orders.size() < 2; ++seed) {
        make({.alone = true, .seed = seed}, 2);
        std::atomic<int> next{0};
        std::array<int, 2> came{};
        for (int round = 0; round < 4; ++round)
            for (size_t i = 0; i < 2; ++i) emulation::enqueue(streams_[i], [&, i] { came[i] = next++; });
        while (next < 8) std::this_thread::yield();  // nothing waits for them
        orders.insert({came[0]<came[1], came[0]> came[1]});
        for (cudaStream_t stream : std::exchange(streams_, {})) cudaStreamDestroy(stream);
    }
    EXPECT_EQ(orders.size(), 2u);
}

__global__ void nothing(int*) {}

// A kernel's first launch and cudaFree wait for all work of their GPU, other threads' too.
TEST_F(Streams, AreWaitedForByTheWholeGpu) {
    make({.alone = true, .lazy_modules = true}, 0);
    void* memory = nullptr;
    const Ints word(1);
    const std::function<void()> calls[] = {
        [&] { cudaFree(memory); },
        [&] { launch(nothing, {.blocks = dim3(1), .threads = dim3(32)}, Stream{}, word.data()); },
        [&] { launch(nothing, {.blocks = dim3(1), .threads = dim3(32)}, Stream{}, word.data()); }};
    const bool waits[] = {true, true, false};
    for (size_t i = 0; i < 3; ++i) {
        SCOPED_TRACE(i);
        cudaMalloc(&memory, 8);
        std::atomic<bool> ends{waits[i]}, ended{false};
        cudaStream_t stream = nullptr;
        std::thread other([&] {
            cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
            emulation::enqueue(stream, [&] {
                while (!ends) std::this_thread::yield();
                ended = true;
            });
        });
        other.join();
        calls[i]();
        EXPECT_EQ(ended, waits[i]);
        ends = true;
        cudaStreamDestroy(stream);
    }
}

// --- captures --------------------------------------------------------------------------------------------------------

class Captures : public ::testing::Test {
  protected:
    Captures() {
        for (cudaStream_t& stream : streams_) cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        for (cudaEvent_t& event : events_) cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    }
    ~Captures() override {
        for (cudaEvent_t event : events_) cudaEventDestroy(event);
        for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
    }
    void begin(cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal) const {
        ASSERT_EQ(cudaStreamBeginCapture(streams_[0], mode), cudaSuccess);
    }
    cudaError_t end() const {
        cudaGraph_t graph = nullptr;
        const cudaError_t result = cudaStreamEndCapture(streams_[0], &graph);
        if (graph != nullptr) cudaGraphDestroy(graph);
        return result;
    }
    static cudaError_t in_another_thread(const std::function<cudaError_t()>& call) {
        cudaError_t result = cudaSuccess;
        std::thread([&] { result = call(); }).join();
        return result;
    }

    std::array<cudaStream_t, 2> streams_{};
    std::array<cudaEvent_t, 2> events_{};
};

TEST_F(Captures, SeeOtherThreadsByTheirMode) {
    const auto query = [&] { return cudaEventQuery(events_[0]); };
    begin();
    EXPECT_EQ(in_another_thread(query), cudaSuccess);
    EXPECT_EQ(end(), cudaSuccess);
    begin(cudaStreamCaptureModeGlobal);
    EXPECT_EQ(in_another_thread(query), cudaErrorStreamCaptureUnsupported);
    EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
    begin(cudaStreamCaptureModeRelaxed);
    EXPECT_EQ(query(), cudaSuccess);
    EXPECT_EQ(end(), cudaSuccess);
    begin();
    EXPECT_EQ(in_another_thread([&] { return end(); }), cudaErrorStreamCaptureWrongThread);
    EXPECT_EQ(end(), cudaSuccess);
}

TEST_F(Captures, AreClosedToEventsOfOutside) {
    cudaEventRecord(events_[0], streams_[1]);
    begin();
    EXPECT_EQ(cudaStreamWaitEvent(streams_[0], events_[1]), cudaSuccess);  // never recorded: no wait
    EXPECT_EQ(cudaStreamWaitEvent(streams_[0], events_[0]), cudaErrorStreamCaptureIsolation);
    EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
    begin();
    cudaEventRecord(events_[0], streams_[0]);
    EXPECT_EQ(end(), cudaSuccess);
    EXPECT_EQ(cudaEventQuery(events_[0]), cudaErrorCapturedEvent);
    EXPECT_EQ(cudaEventSynchronize(events_[0]), cudaErrorCapturedEvent);
    EXPECT_EQ(cudaStreamWaitEvent(streams_[1], events_[0]), cudaErrorInvalidValue);
}

TEST_F(Captures, TakeInStreamsThatAreJoinedAgain) {
    const Ints word(1);
    const auto add = [&](size_t stream) {
        launch(nothing, {.blocks = dim3(1), .threads = dim3(32)}, Stream{.native = streams_[stream]}, word.data());
    };
    for (const bool joins : {true, false}) {
        begin();
        cudaEventRecord(events_[0], streams_[0]);
        EXPECT_EQ(cudaStreamWaitEvent(streams_[1], events_[0]), cudaSuccess);
        cudaStreamCaptureStatus status{};
        cudaStreamIsCapturing(streams_[1], &status);
        EXPECT_EQ(status, cudaStreamCaptureStatusActive);
        add(1);
        cudaEventRecord(events_[1], streams_[1]);
        if (!joins) add(1);
        EXPECT_EQ(cudaStreamWaitEvent(streams_[0], events_[1]), cudaSuccess);
        EXPECT_EQ(end(), joins ? cudaSuccess : cudaErrorStreamCaptureUnjoined);
    }
}

// The writer of checkpoints and the thread that watches NCCL's operations go on while a rank records.
TEST(Recordings, OfADeviceDoNotForbidOtherThreadsTheirCalls) {
    const auto device = make_cuda_device(0);
    const Ints word(1);
    const auto recording = device->record([&] {
        launch(nothing, {.blocks = dim3(1), .threads = dim3(32)}, device->stream(), word.data());
        std::thread([] {
            void* memory = nullptr;
            EXPECT_EQ(cudaMalloc(&memory, 8), cudaSuccess);
            EXPECT_EQ(cudaFree(memory), cudaSuccess);
        }).join();
    });
    recording->run();
    device->synchronize();
}

}  // namespace
}  // namespace tutti
