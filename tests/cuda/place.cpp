// The part of cuda_place.h that is the same on a GPU and emulated.
#include <new>

#include "tutti/device/cuda/runtime.h"
#include "tutti/kernels/testing/cuda_place.h"

namespace tutti::kernels {

namespace {

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
    static std::pmr::unsynchronized_pool_resource pool(&pinned);
    static const Place place = [] {
        cudaStream_t stream = nullptr;
        check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
        return Place{.stream = {.threads = 1, .native = stream}, .memory = &pool, .wait = [stream] {
                         check_cuda(cudaStreamSynchronize(stream), "a kernel");
                     }};
    }();
    return place;
}

}  // namespace tutti::kernels
