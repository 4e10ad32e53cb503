// tests/cuda/nccl/ranks.h: ranks as threads, each with an emulated GPU, that communicate through the fake NCCL.
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>

#include "tests/cuda/emulation/api.h"
#include "tutti/comm/nccl/nccl_world.h"
#include "tutti/comm/threads/thread_world.h"
#include "tutti/device/cuda/cuda_device.h"

namespace tutti::comm {

inline constexpr int kMostRanks = 16;

enum class FakeFault { none, hang, error, slow, stuck };

// The library's own functions, for tests.
class FakeNccl {
  public:
    FakeNccl() {
        setenv("TUTTI_NCCL", TUTTI_FAKE_NCCL, 1);
        emulation::set_gpus(kMostRanks);
        library_ = dlopen(TUTTI_FAKE_NCCL, RTLD_NOW | RTLD_LOCAL);
        check(library_ != nullptr, "the fake NCCL: ", library_ != nullptr ? "" : dlerror());
    }
    // Fault of the next collective or communicator of the calling thread (fake_nccl.cpp).
    void fault(FakeFault fault, int milliseconds = 0) const {
        reinterpret_cast<void (*)(int, int)>(dlsym(library_, "fake_nccl_fault"))(static_cast<int>(fault), milliseconds);
    }
    int live() const { return reinterpret_cast<int (*)()>(dlsym(library_, "fake_nccl_live"))(); }
    int64_t calls() const { return reinterpret_cast<int64_t (*)()>(dlsym(library_, "fake_nccl_calls"))(); }

    int max_ctas() const { return reinterpret_cast<int (*)()>(dlsym(library_, "fake_nccl_max_ctas"))(); }

  private:
    void* library_;
};

inline FakeNccl& fake_nccl() {
    static FakeNccl fake;
    return fake;
}

struct GpuRankOptions {
    bool tree = true;
    int max_ctas = 0;
    double timeout_s = 60;  // of operations on GPUs; the host has a minute
    std::string flight_directory = {};
};

inline void on_gpus(int ranks, const GpuRankOptions& options, const std::function<void(World&, Device&)>& body) {
    fake_nccl();
    run_ranks(
        ranks, {.timeout_s = 60, .flight_directory = options.flight_directory, .watched = true}, [&](World& threads) {
            const auto device = make_cuda_device(threads.rank());
            const auto world = nccl_world(
                threads, *device, {.tree = options.tree, .max_ctas = options.max_ctas, .timeout_s = options.timeout_s});
            body(*world, *device);
        });
}

}  // namespace tutti::comm
