#include "tutti/comm/nccl/nccl_world.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "tutti/comm/nccl/communicator.h"

namespace tutti::comm {

namespace nccl {
namespace {

// GPUs notify no thread: while operations are under way the watching thread polls every few milliseconds.
class GpuNotifier final : public Notifier {
  public:
    void sleep(Clock::time_point until, const std::function<bool()>& ready) override {
        uint64_t seen = 0;
        {
            const std::lock_guard lock(mutex_);
            seen = rings_;
        }
        if (ready()) return;
        std::unique_lock lock(mutex_);
        rung_.wait_until(lock, std::min(until, Clock::now() + kLook), [&] { return rings_ != seen; });
    }
    void notify() override {
        {
            const std::lock_guard lock(mutex_);
            ++rings_;
        }
        rung_.notify_all();
    }
    void check_abort() const override {}
    std::chrono::nanoseconds spin_time() const override { return {}; }

  private:
    static constexpr std::chrono::milliseconds kLook{5};
    std::mutex mutex_;
    std::condition_variable rung_;
    uint64_t rings_ = 0;
};

class NcclWorld final : public World {
  public:
    NcclWorld(World& inner, Device& device, const DeviceWorldOptions& options)
        : inner_(inner),
          device_(device),
          options_(options),
          guard_(inner, device, options.timeout_s),
          progress_(std::make_shared<GpuNotifier>(), options.timeout_s, true) {
        api();
    }

    int rank() const override { return inner_.rank(); }
    int size() const override { return inner_.size(); }
    std::string backend() const override { return inner_.backend() + " and NCCL"; }
    std::unique_ptr<Communicator> group(const std::string& name, const std::vector<int>& ranks) override {
        return std::make_unique<NcclCommunicator>(inner_.group(name, ranks), device_, guard_, progress_, options_,
                                                  waiting_);
    }
    void abort(const std::string& reason) override { inner_.abort(reason); }
    Progress& progress() override { return inner_.progress(); }
    FlightRecorder& recorder() override { return inner_.recorder(); }

  private:
    World& inner_;
    Device& device_;
    const DeviceWorldOptions options_;
    std::vector<NcclCommunicator*> waiting_;
    Guard guard_;
    Progress progress_;  // last: its thread uses the others
};

}  // namespace
}  // namespace nccl

std::string nccl_library() {
    int version = 0;
    nccl::api().get_version(&version);
    return concat("NCCL ", version / 10000, '.', version / 100 % 100, '.', version % 100);
}

std::unique_ptr<World> nccl_world(World& inner, Device& device, const DeviceWorldOptions& options) {
    return std::make_unique<nccl::NcclWorld>(inner, device, options);
}

}  // namespace tutti::comm
