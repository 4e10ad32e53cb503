#include "tutti/comm/nccl/nccl_world.h"

#include <algorithm>
#include <thread>

#include "tutti/comm/nccl/communicator.h"

namespace tutti::comm {

namespace nccl {
namespace {

// GPUs do not notify threads, so the watching thread polls. Not more often, since a poll takes locks of the driver that
// kernel launches need.
class GpuNotifier final : public Notifier {
  public:
    void sleep(Clock::time_point until, const std::function<bool()>&) override {
        constexpr std::chrono::milliseconds kPollInterval{5};
        std::this_thread::sleep_until(std::min(until, Clock::now() + kPollInterval));
    }
    void notify() override {}
    void check_abort() const override {}
    std::chrono::nanoseconds spin_time() const override { return {}; }
};

// Never complete, so that each round of the watching thread polls NCCL, the call in progress and the other ranks.
class Watch final : public Operation {
  public:
    explicit Watch(Guard& guard) : Operation({}, "", 0), guard_(guard) {}
    bool advance() override {
        if (guard_.failed()) return false;
        try {
            guard_.poll();
        } catch (...) {
            guard_.fail(std::current_exception());
        }
        return false;
    }
    std::string waits_for() const override { return "nothing"; }

  private:
    Guard& guard_;
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
        progress_.add(std::make_shared<Watch>(guard_));
    }

    int rank() const override { return inner_.rank(); }
    int size() const override { return inner_.size(); }
    std::string backend() const override { return inner_.backend() + " and NCCL"; }
    std::unique_ptr<Communicator> group(const std::string& name, const std::vector<int>& ranks) override {
        return make(inner_.group(name, ranks), false);
    }
    std::unique_ptr<Communicator> channel(const std::string& name, const std::vector<int>& ranks) override {
        return make(inner_.channel(name, ranks), true);
    }
    void abort(const std::string& reason) override { inner_.abort(reason); }
    Progress& progress() override { return inner_.progress(); }
    FlightRecorder& recorder() override { return inner_.recorder(); }

  private:
    std::unique_ptr<Communicator> make(std::unique_ptr<Communicator> host, bool is_channel) {
        return std::make_unique<NcclCommunicator>(std::move(host), device_, guard_, progress_, options_, waiting_,
                                                  is_channel);
    }
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
