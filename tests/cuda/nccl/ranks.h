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
#include "tutti/kernels/backends.h"

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
    // Of the newest group, for collectives (0) and messages (1).
    int ctas(int split) const { return reinterpret_cast<int (*)(int)>(dlsym(library_, "fake_nccl_split_ctas"))(split); }
    int64_t bytes_between(int of_host) const {
        return reinterpret_cast<int64_t (*)(int)>(dlsym(library_, "fake_nccl_bytes_between"))(of_host);
    }
    int64_t unaligned() const { return reinterpret_cast<int64_t (*)()>(dlsym(library_, "fake_nccl_unaligned"))(); }
    int running() const { return reinterpret_cast<int (*)()>(dlsym(library_, "fake_nccl_running"))(); }
    int64_t messages() const {  // that the calling thread has sent or received so far
        return reinterpret_cast<int64_t (*)()>(dlsym(library_, "fake_nccl_messages"))();
    }
    int64_t host_us() const { return reinterpret_cast<int64_t (*)()>(dlsym(library_, "fake_nccl_host_us"))(); }

  private:
    void* library_;
};

inline FakeNccl& fake_nccl() {
    static FakeNccl fake;
    return fake;
}

struct GpuRankOptions {
    SumOrder order = SumOrder::tree;
    int max_ctas = 0, message_ctas = DeviceWorldOptions().message_ctas;
    int ranks_of_host = kMostRanks;  // ranks [0, n) share a host, [n, 2 n) the next, ...
    double timeout_s = 60;           // of operations on GPUs; the host has a minute
    int first_gpu = 0;               // of rank 0; worlds at the same time have GPUs of their own
    std::string flight_directory = {};
};

// Threads that say that they are on several hosts.
class HostsWorld final : public World {
  public:
    HostsWorld(World& inner, int of_host) : inner_(inner), of_host_(of_host) {}
    int rank() const override { return inner_.rank(); }
    int size() const override { return inner_.size(); }
    std::string backend() const override { return inner_.backend(); }
    std::vector<int> ranks_of_host() const override {
        std::vector<int> ranks;
        for (int r = rank() / of_host_ * of_host_; r < size() && r / of_host_ == rank() / of_host_; ++r)
            ranks.push_back(r);
        return ranks;
    }
    std::unique_ptr<Communicator> group(const std::string& name, const std::vector<int>& ranks) override {
        return inner_.group(name, ranks);
    }
    void abort(const std::string& reason) override { inner_.abort(reason); }
    Progress& progress() override { return inner_.progress(); }
    FlightRecorder& recorder() override { return inner_.recorder(); }

  private:
    World& inner_;
    const int of_host_;
};

// While one exists, the streams of emulated GPUs follow the rules.
class UnderRules {
  public:
    explicit UnderRules(const emulation::StreamRules& rules) { emulation::set_rules(rules); }
    ~UnderRules() { emulation::set_rules({}); }
    UnderRules(const UnderRules&) = delete;
    UnderRules& operator=(const UnderRules&) = delete;
};

inline constexpr int kQueuesOfCuda = 8;  // of the hardware, where the environment says nothing

// While one exists, emulated GPUs have as many hardware queues and load modules as the environment says that the
// program sets for ranks that work together.
class ByEnvironment {
  public:
    ByEnvironment() : rules_(rules_of_program()) {}
    ~ByEnvironment() { forget(); }
    ByEnvironment(const ByEnvironment&) = delete;
    ByEnvironment& operator=(const ByEnvironment&) = delete;

  private:
    static constexpr const char* kNames[] = {"CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MODULE_LOADING"};
    static emulation::StreamRules rules_of_program() {
        forget();
        set_device_environment(true);
        const char *const queues = std::getenv(kNames[0]), *const loading = std::getenv(kNames[1]);
        return {.alone = true,
                .hardware_queues = queues != nullptr ? std::atoi(queues) : kQueuesOfCuda,
                .lazy_modules = loading == nullptr || std::string(loading) != "EAGER"};
    }
    static void forget() {
        for (const char* name : kNames) unsetenv(name);
    }
    UnderRules rules_;
};

inline void on_gpus(int ranks, const GpuRankOptions& options, const std::function<void(World&, Device&)>& body) {
    fake_nccl();
    run_ranks(ranks, {.timeout_s = 60, .flight_directory = options.flight_directory, .watched = true},
              [&](World& threads) {
                  const auto device = make_cuda_device(options.first_gpu + threads.rank());
                  HostsWorld hosts(threads, options.ranks_of_host);
                  const auto world = nccl_world(hosts, *device,
                                                {.order = options.order,
                                                 .max_ctas = options.max_ctas,
                                                 .message_ctas = options.message_ctas,
                                                 .timeout_s = options.timeout_s});
                  body(*world, *device);
              });
}

}  // namespace tutti::comm
