// device/make_device.cpp: chooses the device of a rank; the defaults of Device.
#include <algorithm>
#include <chrono>

#include "tutti/base/error.h"
#include "tutti/device/cuda/cuda_device.h"
#include "tutti/device/device.h"

namespace tutti {

namespace {

int gpus_for(std::string_view kind) {
    check<UsageError>(kind == "auto" || kind == "cpu" || kind == "cuda", "a device is auto, cpu or cuda, not ", kind);
    if (kind == "cpu") return 0;
    const Gpus gpus = find_gpus();
    check<UsageError>(!gpus.found.empty() || kind == "auto", "device = \"cuda\": ", gpus.why_none,
                      "; `tutti doctor` says what this machine has, device = \"cpu\" trains without a GPU");
    for (const Gpu& gpu : gpus.found)
        check<UsageError>(why_unfit(gpu).empty(), "device = \"", kind, "\": ", why_unfit(gpu),
                          "; device = \"cpu\" trains without a GPU");
    return static_cast<int>(gpus.found.size());
}

class HostTimeMark final : public TimeMark {
  public:
    double seconds_since(const TimeMark& before) const override {
        return std::chrono::duration<double>(time_ - static_cast<const HostTimeMark&>(before).time_).count();
    }

  private:
    std::chrono::steady_clock::time_point time_ = std::chrono::steady_clock::now();
};

}  // namespace

std::unique_ptr<TimeMark> Device::mark_time() { return std::make_unique<HostTimeMark>(); }

void check_device(std::string_view kind) { gpus_for(kind); }

std::unique_ptr<Device> make_device(std::string_view kind, int threads, const LocalRank& local) {
    if (const int count = gpus_for(kind); count > 0) return make_cuda_device(local.rank % count);
    return make_cpu_device(threads > 0 ? threads : std::max(1, available_cores() / std::max(1, local.size)));
}

}  // namespace tutti
