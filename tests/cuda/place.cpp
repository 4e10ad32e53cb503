// The part of cuda_place.h that is the same on a GPU and emulated.
#include <cstdlib>

#include "tutti/device/cuda/runtime.h"
#include "tutti/kernels/testing/cuda_place.h"

namespace tutti::kernels {

namespace {

// Each array is a separate allocation, so that compute-sanitizer checks its bounds.
class ManagedMemory final : public std::pmr::memory_resource {
    void* do_allocate(size_t bytes, size_t) override {
        void* data = nullptr;
        check_cuda(cudaMallocManaged(&data, bytes, cudaMemAttachGlobal), "cudaMallocManaged of ", bytes, " bytes");
        return data;
    }
    void do_deallocate(void* data, size_t, size_t) override { cudaFree(data); }
    bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
};

}  // namespace

const Place& cuda_place() {
    static ManagedMemory managed;
    static const Place place = [] {
        cudaStream_t stream = nullptr;
        check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
        constexpr int64_t kWorkspaceBytes = 32 << 20;  // like a device's workspace
        void* workspace = nullptr;
        check_cuda(cudaMalloc(&workspace, kWorkspaceBytes), "cudaMalloc of ", kWorkspaceBytes, " bytes");
        return Place{
            .stream = {.threads = 1, .native = stream, .workspace = workspace, .workspace_bytes = kWorkspaceBytes},
            .memory = &managed,
            .wait = [stream] { check_cuda(cudaStreamSynchronize(stream), "a kernel"); },
            .guard_bytes = std::getenv("TUTTI_TEST_WITHOUT_GUARDS") ? 0 : Place().guard_bytes};
    }();
    return place;
}

}  // namespace tutti::kernels
