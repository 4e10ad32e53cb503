// The part of cuda_place.h that is the same on a GPU and emulated.
#include <cstdlib>

#include "tutti/device/cuda/runtime.h"
#include "tutti/kernels/testing/cuda_place.h"

namespace tutti::kernels {

namespace {

// Each array is a separate allocation, so that compute-sanitizer checks its bounds.
class CudaArrays final : public DeviceArrays {
  public:
    explicit CudaArrays(cudaStream_t stream) : stream_(stream) {}
    std::byte* take(size_t bytes) override {
        void* data = nullptr;
        check_cuda(cudaMalloc(&data, bytes), "cudaMalloc of ", bytes, " bytes");
        return static_cast<std::byte*>(data);
    }
    void give_back(std::byte* array) override { cudaFree(array); }
    void copy_in(std::byte* array, const std::byte* host, size_t bytes) override { copy(array, host, bytes); }
    void copy_out(std::byte* host, const std::byte* array, size_t bytes) override { copy(host, array, bytes); }

  private:
    void copy(void* to, const void* from, size_t bytes) const {
        check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "cudaMemcpyAsync of ", bytes,
                   " bytes");
        check_cuda(cudaStreamSynchronize(stream_), "a kernel");
    }
    cudaStream_t stream_;
};

// For the few tests whose kernels may use memory of the host.
class PinnedMemory final : public std::pmr::memory_resource {
    void* do_allocate(size_t bytes, size_t) override {
        void* data = nullptr;
        check_cuda(cudaMallocHost(&data, bytes), "cudaMallocHost of ", bytes, " bytes");
        return data;
    }
    void do_deallocate(void* data, size_t, size_t) override { cudaFreeHost(data); }
    bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
};

}  // namespace

const Place& cuda_place() {
    static PinnedMemory pinned;
    static const Place place = [] {
        cudaStream_t stream = nullptr;
        check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
        constexpr int64_t kWorkspaceBytes = 32 << 20;  // like a device's workspace
        void* workspace = nullptr;
        check_cuda(cudaMalloc(&workspace, kWorkspaceBytes), "cudaMalloc of ", kWorkspaceBytes, " bytes");
        static CudaArrays arrays(stream);
        return Place{
            .stream = {.threads = 1, .native = stream, .workspace = workspace, .workspace_bytes = kWorkspaceBytes},
            .arrays = &arrays,
            .memory = &pinned,
            .wait = [stream] { check_cuda(cudaStreamSynchronize(stream), "a kernel"); },
            .guard_bytes = std::getenv("TUTTI_TEST_WITHOUT_GUARDS") ? 0 : Place().guard_bytes};
    }();
    return place;
}

}  // namespace tutti::kernels
