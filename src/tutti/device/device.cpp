// device/device.cpp: the defaults of Device.
#include "tutti/device/device.h"

#include <chrono>

namespace tutti {

namespace {

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

}  // namespace tutti
