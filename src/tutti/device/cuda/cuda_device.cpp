#include "tutti/device/cuda/cuda_device.h"

#include <algorithm>
#include <cstring>
#include <iomanip>
#include <utility>

#include "tutti/device/cuda/architectures.h"
#include "tutti/device/cuda/queue.h"

namespace tutti {

using cuda::Queue;

namespace {

// The size that cuBLAS recommends for Hopper, enough for every algorithm; smaller GPUs need less.
constexpr int64_t kWorkspaceBytes = 32 << 20;

class GpuMemory final : public RawMemory {
  public:
    explicit GpuMemory(std::shared_ptr<Queue> queue) : queue_(std::move(queue)), gpu_(queue_->name()) {}
    void* take(int64_t bytes) override {
        void* data = nullptr;
        const cudaError_t status = cudaMalloc(&data, static_cast<size_t>(bytes));
        if (status == cudaSuccess) return data;
        if (status != cudaErrorMemoryAllocation) check_cuda(status, "cudaMalloc of ", bytes, " bytes on ", gpu_);
        cudaGetLastError();  // else the next launch would report it
        return nullptr;
    }
    void give_back(void* data, int64_t) override {
        queue_->wait_for_sides();
        cudaFree(data);
    }
    void values_end(void* data, int64_t bytes) override { end_of_values(data, bytes, queue_->stream()); }
    std::string advice() const override { return concat(gpu_, " is full; ", RawMemory::advice()); }

  private:
    const std::shared_ptr<Queue> queue_;
    const std::string gpu_;
};

int attribute(cudaDeviceAttr which, int gpu) {
    int value = 0;
    check_cuda(cudaDeviceGetAttribute(&value, which, gpu), "cudaDeviceGetAttribute of GPU ", gpu);
    return value;
}

// "NVIDIA H200, GPU-2f4a1c9e", with the beginning of the UUID: the same in every process, whichever GPUs each one sees.
std::string identity_of(int gpu) {
    cudaDeviceProp properties{};
    check_cuda(cudaGetDeviceProperties(&properties, gpu), "cudaGetDeviceProperties of GPU ", gpu);
    std::ostringstream text;
    text << properties.name << ", GPU-" << std::hex << std::setfill('0');
    for (int i = 0; i < 4; ++i) text << std::setw(2) << (properties.uuid.bytes[i] & 0xff);
    return text.str();
}

// FLOP of one multiprocessor in a cycle, dense, sums in f32: NVIDIA's architecture white papers. TF32 has half of
// bf16's rate on all of them. GeForce cards of 8.6 to 12.0 add in f32 at half the rate of professional ones.
// `boost_mhz`: the clock in the data sheets, where the highest clock of the tensor cores is
// lower than that of the other units; else 0.
struct Rates {
    int capability;
    const char* of;  // in the name of the GPU; "": any
    double bf16, f32;
    double boost_mhz;
};
constexpr Rates kRates[] = {{80, "", 2048, 128, 0},       {86, "", 1024, 256, 0},  {86, "GeForce", 512, 256, 0},
                            {90, "", 4096, 256, 1830},    {100, "", 8192, 256, 0}, {120, "", 1024, 256, 0},
                            {120, "GeForce", 512, 256, 0}};

const Rates& rates_of(int capability, const std::string& name) {
    const Rates* best = kRates;
    for (const Rates& row : kRates)
        if (row.capability <= capability && name.find(row.of) != std::string::npos) best = &row;
    return *best;
}

// ---- graphs: a launch costs the host some microseconds, a graph of thousands of launches little more than one ----

// A capture of the queue's stream; the destructor ends the capture when the work throws.
class Capture {
  public:
    // Thread-local: other ranks of the process and the writer of checkpoints go on with their own work.
    explicit Capture(const Queue& queue) : queue_(queue) {
        check_cuda(cudaStreamBeginCapture(queue.stream(), cudaStreamCaptureModeThreadLocal),
                   "cudaStreamBeginCapture on ", queue.name());
    }
    ~Capture() {
        if (!ended_) cudaStreamEndCapture(queue_.stream(), &graph_);
        if (graph_ != nullptr) cudaGraphDestroy(graph_);
        cudaGetLastError();  // else the next launch would report this failure
    }
    Capture(const Capture&) = delete;
    Capture& operator=(const Capture&) = delete;
    cudaGraph_t end() {
        ended_ = true;
        check_cuda(cudaStreamEndCapture(queue_.stream(), &graph_), "cudaStreamEndCapture on ", queue_.name());
        return graph_;
    }

  private:
    const Queue& queue_;
    cudaGraph_t graph_ = nullptr;
    bool ended_ = false;
};

class Graph final : public Recording {
  public:
    Graph(std::shared_ptr<Queue> queue, cudaGraph_t captured) : queue_(std::move(queue)) {
        check_cuda(cudaGraphInstantiate(&graph_, captured, 0), "cudaGraphInstantiate on ", queue_->name());
    }
    ~Graph() override {
        cudaStreamSynchronize(queue_->stream());  // the graph may be running
        cudaGraphExecDestroy(graph_);
    }
    Graph(const Graph&) = delete;
    Graph& operator=(const Graph&) = delete;
    void run() override {
        check_cuda(cudaGraphLaunch(graph_, queue_->stream()), "cudaGraphLaunch on ", queue_->name());
    }

  private:
    std::shared_ptr<Queue> queue_;
    cudaGraphExec_t graph_ = nullptr;
};

// ---- the device ----

class CudaDevice : public Device {
  public:
    CudaDevice(std::shared_ptr<Queue> queue, std::unique_ptr<RawMemory> memory, std::string name)
        : queue_(std::move(queue)), memory_(std::make_shared<Allocator>(std::move(memory))), name_(std::move(name)) {
        stream_.native = queue_->stream();
        stream_.capability = 10 * attribute(cudaDevAttrComputeCapabilityMajor, queue_->gpu()) +
                             attribute(cudaDevAttrComputeCapabilityMinor, queue_->gpu());
    }
    ~CudaDevice() override { cudaStreamSynchronize(queue_->stream()); }
    CudaDevice(const CudaDevice&) = delete;
    CudaDevice& operator=(const CudaDevice&) = delete;

    std::string_view backend() const override { return "cuda"; }
    bool host_readable() const override { return false; }
    bool launches_async() const override { return true; }
    bool records() const override { return true; }
    std::string name() const override { return name_; }
    std::string model() const override { return queue_->model(); }
    std::string identity() const override { return identity_of(queue_->gpu()); }
    Allocator& memory() override { return *memory_; }
    std::vector<MemoryLimit> memory_limits() override {
        size_t free = 0, total = 0;
        check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo of ", name_);
        return {{identity(), static_cast<int64_t>(total), static_cast<int64_t>(free)}};
    }
    const Stream& stream() const override { return stream_; }
    void copy_in(void* device_data, const void* host_data, int64_t bytes) override {
        queue_->copy_in(device_data, host_data, bytes);
    }
    void copy_out(void* host_data, const void* device_data, int64_t bytes) override {
        queue_->copy_out(host_data, device_data, bytes);
    }
    std::unique_ptr<PendingHostCopy> copy_to_host_async(const void* device_data, int64_t bytes) override {
        return queue_->copy_to_host_async(device_data, bytes);
    }
    void copy(void* to, const void* from, int64_t bytes) override { queue_->copy(to, from, bytes); }
    std::shared_ptr<SideWork> copy_async(void* to, const void* from, int64_t bytes) override {
        return queue_->copy_async(to, from, bytes);
    }
    std::unique_ptr<SideStream> side_stream() override { return queue_->side_stream(); }
    void synchronize() override { queue_->synchronize(); }
    void choose_products(const ProductChoices& choices) override {
        const int all = attribute(cudaDevAttrMultiProcessorCount, queue_->gpu());
        check<UsageError>(std::max(choices.spared_by_forward, choices.spared_by_gradients) < all, name_, " has ", all,
                          " multiprocessors, and matrix products must leave ",
                          std::max(choices.spared_by_forward, choices.spared_by_gradients),
                          " of them free; lower comm.max_ctas or set comm.spare_multiprocessors = false");
        stream_.products = choices;
    }
    void choose_attention(kernels::AttentionChoice* choice) override { stream_.attention = choice; }
    std::unique_ptr<TimeMark> mark_time() override { return queue_->mark_time(); }
    void fail(std::exception_ptr why) override { queue_->fail(std::move(why)); }
    std::unique_ptr<Recording> record(const std::function<void()>& work) override {
        Capture capture(*queue_);
        work();
        return std::make_unique<Graph>(queue_, capture.end());
    }

    std::unique_ptr<Device> make_offload_device(const std::string& directory) override;
    // By the data sheet: no clock is constant under full load, and shares of a measured peak cannot be compared.
    ArithmeticPeak peak(ComputeType compute_type, double) override {
        const int gpu = queue_->gpu(), multiprocessors = attribute(cudaDevAttrMultiProcessorCount, gpu);
        const Rates& row = rates_of(
            10 * attribute(cudaDevAttrComputeCapabilityMajor, gpu) + attribute(cudaDevAttrComputeCapabilityMinor, gpu),
            queue_->model());
        double mhz = attribute(cudaDevAttrClockRate, gpu) / 1000.0;
        if (mhz == 0) mhz = row.boost_mhz;  // some virtual machines report no clock
        check(mhz > 0, "the peak of ", name_, " is not known: CUDA reports no clock rate (cudaDevAttrClockRate)");
        const bool tensor_cores = compute_type != ComputeType::f32;
        if (tensor_cores && row.boost_mhz > 0) mhz = std::min(mhz, row.boost_mhz);
        const double of_cycle = !tensor_cores                       ? row.f32
                                : compute_type == ComputeType::tf32 ? row.bf16 / 2
                                                                    : row.bf16;  // f16 has bf16's rate
        return {multiprocessors * mhz * 1e6 * of_cycle,
                concat(multiprocessors, " multiprocessors x ", of_cycle, " FLOP x ", mhz, " MHz")};
    }

    void make_workspace() {
        workspace_ = std::make_unique<Buffer>(*memory_, kWorkspaceBytes, Purpose::workspace);
        stream_.workspace = workspace_->data();
        stream_.workspace_bytes = kWorkspaceBytes;
    }

  private:
    std::shared_ptr<Queue> queue_;
    std::shared_ptr<Allocator> memory_;
    std::string name_;
    std::unique_ptr<Buffer> workspace_;
    Stream stream_;
};

// Memory of the host that kernels use. The host copies after all kernels have finished.
class PinnedHome final : public CudaDevice {
  public:
    explicit PinnedHome(const std::shared_ptr<Queue>& queue)
        : CudaDevice(queue, std::make_unique<cuda::PinnedMemory>(), "pinned memory of " + queue->name()) {}
    std::vector<MemoryLimit> memory_limits() override { return host_memory_limits(); }
    void copy_in(void* device_data, const void* host_data, int64_t bytes) override {
        synchronize();
        if (bytes > 0) std::memcpy(device_data, host_data, static_cast<size_t>(bytes));
    }
    void copy_out(void* host_data, const void* device_data, int64_t bytes) override {
        synchronize();
        if (bytes > 0) std::memcpy(host_data, device_data, static_cast<size_t>(bytes));
    }
};

std::unique_ptr<Device> CudaDevice::make_offload_device(const std::string&) {
    return std::make_unique<PinnedHome>(queue_);
}

}  // namespace

Gpus find_gpus() {
    Gpus gpus;
    int count = 0;
    if (const cudaError_t status = cudaGetDeviceCount(&count); status != cudaSuccess) {
        cudaGetLastError();
        gpus.why_none = concat("CUDA finds no GPU: ", cudaGetErrorString(status));
        return gpus;
    }
    for (int index = 0; index < count; ++index) {
        cudaDeviceProp p{};
        if (const cudaError_t status = cudaGetDeviceProperties(&p, index); status != cudaSuccess)
            return {{}, concat("CUDA cannot use GPU ", index, ": ", cudaGetErrorString(status))};
        gpus.found.push_back({p.name, static_cast<int64_t>(p.totalGlobalMem), p.major, p.minor, p.multiProcessorCount});
    }
    if (count == 0) gpus.why_none = "CUDA sees no GPU";
    return gpus;
}

std::string kernel_architectures() { return std::string(cuda::compiled_architectures()); }

std::string why_unfit(const Gpu& gpu) {
    if (cuda::runs_on(cuda::compiled_architectures(), gpu.major, gpu.minor)) return "";
    return concat("the ", gpu.name, " has compute capability ", gpu.major, ".", gpu.minor,
                  ", and the kernels of this program are compiled for ", cuda::compiled_architectures(),
                  "; build it with -DTUTTI_CUDA_ARCHITECTURES=", gpu.major, gpu.minor,
                  "-real, or hide that GPU (CUDA_VISIBLE_DEVICES)");
}

GpuAndDriver current_gpu() {
    int gpu = 0, version = 0;
    check_cuda(cudaGetDevice(&gpu), "cudaGetDevice");
    cudaDeviceProp properties{};
    check_cuda(cudaGetDeviceProperties(&properties, gpu), "cudaGetDeviceProperties of GPU ", gpu);
    check_cuda(cudaDriverGetVersion(&version), "cudaDriverGetVersion");
    return {concat(properties.name, ", ", properties.multiProcessorCount, " multiprocessors"),
            concat("driver of CUDA ", version / 1000, '.', version / 10 % 100)};
}

std::unique_ptr<Device> make_cuda_device(int index) {
    const auto queue = std::make_shared<Queue>(index);
    auto device = std::make_unique<CudaDevice>(queue, std::make_unique<GpuMemory>(queue), queue->name());
    device->make_workspace();
    return device;
}

}  // namespace tutti
