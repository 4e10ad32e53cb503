// The emulation itself: it keeps CUDA's guarantees and detects what CUDA forbids.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "tutti/device/cuda/launch.h"

namespace tutti {
namespace {

constexpr unsigned kAll = 0xffffffffu;

// An array in the memory of the device, with copies in and out.
class DeviceInts {
  public:
    explicit DeviceInts(const std::vector<int>& values) : count_(values.size()) {
        void* data = nullptr;
        check_cuda(cudaMalloc(&data, bytes()), "cudaMalloc");
        data_ = static_cast<int*>(data);
        check_cuda(cudaMemcpy(data_, values.data(), bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
    }
    ~DeviceInts() { cudaFree(data_); }
    DeviceInts(const DeviceInts&) = delete;
    DeviceInts& operator=(const DeviceInts&) = delete;
    int* data() const { return data_; }
    size_t bytes() const { return count_ * sizeof(int); }
    std::vector<int> values() const {
        std::vector<int> host(count_);
        check_cuda(cudaMemcpy(host.data(), data_, bytes(), cudaMemcpyDeviceToHost), "cudaMemcpy");
        return host;
    }

  private:
    size_t count_;
    int* data_ = nullptr;
};

struct Row {
    int at[1024];
};

template <bool with_barrier>
__global__ void reverse(int* x) {
    Row& row = block_shared<Row>();
    row.at[threadIdx.x] = x[threadIdx.x];
    if constexpr (with_barrier) __syncthreads();
    x[threadIdx.x] = row.at[blockDim.x - 1 - threadIdx.x];
}

std::vector<int> reversed(bool with_barrier, emulation::Order order) {
    std::vector<int> values(100);
    std::iota(values.begin(), values.end(), 0);
    const DeviceInts x(values);
    emulation::set_order(order);
    launch(with_barrier ? reverse<true> : reverse<false>, {.blocks = dim3(1), .threads = dim3(100)}, Stream{},
           x.data());
    emulation::set_order(emulation::Order::forward);
    return x.values();
}

TEST(Emulation, ABarrierOrdersSharedMemory) {
    using enum emulation::Order;
    std::vector<int> expected(100);
    std::iota(expected.rbegin(), expected.rend(), 0);
    EXPECT_EQ(reversed(true, forward), expected);
    EXPECT_EQ(reversed(true, backward), expected);
    EXPECT_NE(reversed(false, forward), expected);  // unwritten memory is not zero either
    EXPECT_NE(reversed(false, forward), reversed(false, backward));
}

__global__ void warp_functions(int* sums, int* votes) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    int sum = static_cast<int>(threadIdx.x);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAll, sum, step);
    sums[threadIdx.x] = sum + 1000 * __shfl_sync(kAll, lane, 7);
    votes[threadIdx.x] = static_cast<int>(__ballot_sync(kAll, lane % 3 == 0));
}

TEST(Emulation, WarpFunctionsMeetAllLanes) {
    const DeviceInts sums(std::vector<int>(64)), votes(std::vector<int>(64));
    launch(warp_functions, {.blocks = dim3(1), .threads = dim3(64)}, Stream{}, sums.data(), votes.data());
    for (int i = 0; i < 64; ++i) {
        EXPECT_EQ(sums.values()[static_cast<size_t>(i)], 7000 + (i < 32 ? 496 : 1520));
        EXPECT_EQ(votes.values()[static_cast<size_t>(i)], 0x49249249);
    }
}

__global__ void index_of_thread(int* x) {
    const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    x[block * blockDim.x * blockDim.y * blockDim.z + thread] = static_cast<int>(block * 100 + thread);
}

TEST(Emulation, EveryThreadOfEveryBlockRunsOnce) {
    const DeviceInts x(std::vector<int>(2 * 3 * 2 * 24, -1));
    launch(index_of_thread, {.blocks = dim3(2, 3, 2), .threads = dim3(4, 3, 2)}, Stream{}, x.data());
    const std::vector<int> values = x.values();
    for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], static_cast<int>(i / 24 * 100 + i % 24));
}

// Each block waits until `step` blocks before it, or after it, have arrived, and records when it arrived.
__global__ void come_in_turn(int* came, int* places, int* begun, int step) {
    const int block = static_cast<int>(blockIdx.x), other = block - step;
    begun[block] = (*places)++;
    if (other >= 0 && other < static_cast<int>(gridDim.x))
        emulation::wait_until([=] { return came[other] >= 0; }, emulation::Place::current());
    came[block] = (*places)++;
}

TEST(Emulation, BlocksThatWaitBeginInOrderAndRunNewestFirst) {
    constexpr int kBlocks = 40, kTogether = static_cast<int>(emulation::kBlocksTogether);
    const Grid grid{.blocks = dim3(kBlocks), .threads = dim3(1), .blocks_wait = true};
    for (const auto order : {emulation::Order::forward, emulation::Order::backward})
        for (const int step : {1, 3, -1}) {
            SCOPED_TRACE(step);
            const DeviceInts came(std::vector<int>(kBlocks, -1)), places({0}), begun(std::vector<int>(kBlocks, -1));
            emulation::set_order(order);
            const auto run = [&] {
                launch(come_in_turn, grid, Stream{}, came.data(), places.data(), begun.data(), step);
            };
            if (step < 0) {
                EXPECT_THROW(run(), Error) << "waits for blocks that begin later";
                emulation::set_order(emulation::Order::forward);
                continue;
            }
            run();
            emulation::set_order(emulation::Order::forward);
            const std::vector<int> when = came.values(), began = begun.values();
            for (int i = step; i < kBlocks; ++i)
                EXPECT_GT(when[static_cast<size_t>(i)], when[static_cast<size_t>(i - step)]);
            if (order == emulation::Order::forward)
                EXPECT_EQ(began[1], 2);
            else  // the newest of the first blocks begins before the others
                EXPECT_EQ(began[kTogether - 1], 0);
        }
}

__global__ void divergent() {
    if (threadIdx.x < 5)
        __syncthreads();
    else
        __syncthreads();
}
__global__ void lonely_lanes() {
    if (threadIdx.x < 5) __syncwarp();
}
__global__ void divergent_lanes() {
    if (threadIdx.x < 5)
        __syncwarp();
    else
        __syncwarp();
}
__global__ void early_exit(int* x) {
    if (threadIdx.x >= 40) return;
    __syncthreads();
    x[threadIdx.x] = 1;
}
__global__ void nothing() {}

// The message of the Error that launching throws.
template <class... A>
std::string error_of(void (*kernel)(A...), const Grid& grid, A... arguments) {
    try {
        launch(kernel, grid, Stream{}, arguments...);
    } catch (const Error& error) {
        return error.what();
    }
    return "no error";
}

TEST(Emulation, DivergentBarriersAreErrors) {
    const Grid grid{.blocks = dim3(1), .threads = dim3(64)};
    EXPECT_NE(error_of(divergent, grid).find("while other threads of the block wait"), std::string::npos);
    EXPECT_NE(error_of(lonely_lanes, grid).find("lanes that never come"), std::string::npos);
    EXPECT_NE(error_of(divergent_lanes, grid).find("while other lanes wait"), std::string::npos);
    const DeviceInts x(std::vector<int>(40));
    EXPECT_EQ(error_of(early_exit, grid, x.data()), "no error");  // barriers do not wait for threads that have ended
    EXPECT_EQ(x.values(), std::vector<int>(40, 1));
}

TEST(Emulation, LimitsOfALaunchAreChecked) {
    EXPECT_NE(error_of(nothing, {.blocks = dim3(1), .threads = dim3(1025)}).find("1 to 1024 threads"),
              std::string::npos);
    EXPECT_NE(error_of(nothing, {.blocks = dim3(0), .threads = dim3(32)}).find("a grid has"), std::string::npos);
    EXPECT_NE(error_of(nothing, {.blocks = dim3(1), .threads = dim3(32), .shared_bytes = 228 << 10}).find("shared"),
              std::string::npos);
    std::vector<int> host(100);
    EXPECT_NE(error_of(reverse<true>, {.blocks = dim3(1), .threads = dim3(100)}, host.data()).find("pinned"),
              std::string::npos);
}

struct Floats {
    float at[8];
};
__global__ void reads_unwritten(int* x) {
    x[0] = std::isnan(block_shared<Floats>().at[3]);
    x[1] = std::isnan(*reinterpret_cast<float*>(dynamic_shared() + 64));
}

TEST(Emulation, SharedMemoryBeginsAsNaN) {
    const DeviceInts x({0, 0});
    launch(reads_unwritten, {.blocks = dim3(1), .threads = dim3(1), .shared_bytes = 128}, Stream{}, x.data());
    EXPECT_EQ(x.values(), (std::vector<int>{1, 1}));
}

alignas(16) constexpr int kSource[4] = {1, 2, 3, 4};
__global__ void copies(int* x) {
    auto* const row = reinterpret_cast<int*>(dynamic_shared()) + 4 * threadIdx.x;
    emulation::copy_async(row, kSource);
    emulation::commit_copies();
    emulation::wait_for_copies(1, emulation::Place::current());
    x[2 * threadIdx.x] = row[2];
    emulation::wait_for_copies(0, emulation::Place::current());
    x[2 * threadIdx.x + 1] = row[2];
}

TEST(Emulation, AnAsynchronousCopyArrivesAtTheWait) {
    const DeviceInts x(std::vector<int>(8));
    launch(copies, {.blocks = dim3(1), .threads = dim3(4), .shared_bytes = 64}, Stream{}, x.data());
    EXPECT_EQ(x.values(), (std::vector<int>{-1, 3, -1, 3, -1, 3, -1, 3}));
}

TEST(EmulationDeathTest, TheHostMayNotTouchDeviceMemory) {
    testing::FLAGS_gtest_death_test_style = "threadsafe";
    const DeviceInts x({1, 2, 3});
    EXPECT_DEATH({ std::fprintf(stderr, "%d", *const_cast<volatile int*>(x.data())); }, "");
}

TEST(Emulation, CopiesCheckBothEnds) {
    const DeviceInts x({1, 2, 3});
    std::vector<int> host(100);
    EXPECT_EQ(cudaMemcpy(host.data(), x.data(), 13, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);  // 12 are there
    EXPECT_EQ(cudaMemcpy(host.data(), host.data() + 50, 4, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    EXPECT_EQ(cudaMemcpy(x.data(), host.data(), 12, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    EXPECT_EQ(cudaMemcpy(x.data(), host.data(), 12, cudaMemcpyHostToDevice), cudaSuccess);
    EXPECT_EQ(cudaFree(host.data()), cudaErrorInvalidValue);
}

__global__ void add_to(int* x, int value) { x[threadIdx.x] += value; }

class CapturedStream : public ::testing::Test {
  protected:
    CapturedStream() { cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking); }
    ~CapturedStream() override { cudaStreamDestroy(stream_); }
    void begin() const { ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess); }
    void add(const DeviceInts& x, int value) const {
        launch(add_to, {.blocks = dim3(1), .threads = dim3(2)}, Stream{.native = stream_}, x.data(), value);
    }

    cudaStream_t stream_ = nullptr;
    cudaGraph_t graph_ = nullptr;
};

TEST_F(CapturedStream, IsDoneAtEachLaunchWithTheNumbersOfTheCapture) {
    const DeviceInts x({0, 10}), y({0, 0});
    begin();
    for (int value = 1; value <= 2; ++value) add(x, value);
    cudaMemcpyAsync(y.data(), x.data(), y.bytes(), cudaMemcpyDeviceToDevice, stream_);
    ASSERT_EQ(cudaStreamEndCapture(stream_, &graph_), cudaSuccess);
    EXPECT_EQ(x.values(), (std::vector<int>{0, 10}));  // nothing ran

    cudaGraphExec_t exec = nullptr;
    ASSERT_EQ(cudaGraphInstantiate(&exec, graph_, 0), cudaSuccess);
    cudaGraphDestroy(graph_);  // the executable graph stays valid
    for (int i = 0; i < 3; ++i) EXPECT_EQ(cudaGraphLaunch(exec, stream_), cudaSuccess);
    cudaGraphExecDestroy(exec);
    EXPECT_EQ(x.values(), (std::vector<int>{0, 10}));  // nothing waited for the stream
    cudaStreamSynchronize(stream_);
    EXPECT_EQ(x.values(), (std::vector<int>{9, 19}));
    EXPECT_EQ(y.values(), (std::vector<int>{9, 19}));
    add(x, 1);
    cudaStreamSynchronize(stream_);
    EXPECT_EQ(x.values(), (std::vector<int>{10, 20}));
}

TEST_F(CapturedStream, IsSpoiltByWhatCudaForbids) {
    const DeviceInts x({1, 2});
    cudaEvent_t event = nullptr;
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    void* data = nullptr;
    int host[2];
    const std::function<cudaError_t()> calls[] = {[&] { return cudaMalloc(&data, 8); },
                                                  [&] { return cudaFree(x.data()); },
                                                  [&] { return cudaMallocHost(&data, 8); },
                                                  [&] { return cudaStreamSynchronize(stream_); },
                                                  [&] { return cudaDeviceSynchronize(); },
                                                  [&] { return cudaEventSynchronize(event); },
                                                  [&] { return cudaEventQuery(event); },
                                                  [&] { return cudaMemcpy(host, x.data(), 8, cudaMemcpyDeviceToHost); }};
    for (const auto& call : calls) {
        begin();
        add(x, 1);
        EXPECT_EQ(call(), cudaErrorStreamCaptureUnsupported);
        cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
        cudaStreamIsCapturing(stream_, &status);
        EXPECT_EQ(status, cudaStreamCaptureStatusInvalidated);
        EXPECT_EQ(cudaStreamEndCapture(stream_, &graph_), cudaErrorStreamCaptureInvalidated);
        EXPECT_EQ(graph_, nullptr);
    }
    cudaEventDestroy(event);
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph_), cudaErrorIllegalState);
    EXPECT_EQ(x.values(), (std::vector<int>{1, 2}));
}

}  // namespace
}  // namespace tutti
