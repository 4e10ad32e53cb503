#include "tutti/train/run_peak.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

namespace tutti::train {

namespace {

constexpr double kSuspicious = 0.9;
constexpr int kMostMeasurements = 5;
constexpr double kFirstSeconds = 0.05, kAgainSeconds = 0.2;

// The highest peaks that this process has measured: the next run in it begins with them.
struct MeasuredPeaks {
    std::mutex mutex;
    std::map<std::pair<std::string, ComputeType>, ArithmeticPeak> of_devices;
};
MeasuredPeaks& measured() {
    static MeasuredPeaks all;
    return all;
}

ArithmeticPeak first_peak(Device& device, ComputeType type) {
    {
        const std::lock_guard lock(measured().mutex);
        const auto known = measured().of_devices.find({device.name(), type});
        if (known != measured().of_devices.end()) return known->second;
    }
    return device.peak(type, kFirstSeconds);
}

}  // namespace

RunPeak::RunPeak(comm::Communicator& ranks, Device& device, ComputeType compute_type)
    : ranks_(ranks), device_(device), compute_type_(compute_type) {
    if (device.host_readable()) {
        const auto hosts = comm::gather_texts(ranks, host_name());
        const auto on_host = static_cast<int>(std::count(hosts.begin(), hosts.end(), host_name()));
        const int threads = on_host * device.stream().threads, cores = available_cores();
        part_ = std::min(1.0, static_cast<double>(cores) / threads);
        if (part_ < 1) shared_ = concat(on_host, " ranks with ", threads, " threads on ", cores, " cores");
    } else {
        const int sharing = comm::ranks_of_device(ranks, device);
        part_ = 1.0 / sharing;
        if (sharing > 1) shared_ = concat("a GPU of ", sharing, " ranks");
    }
    take(first_peak(device, compute_type));
}

void RunPeak::take(const ArithmeticPeak& peak) {
    {
        const std::lock_guard lock(measured().mutex);
        ArithmeticPeak& best = measured().of_devices[{device_.name(), compute_type_}];
        if (peak.flops_per_s > best.flops_per_s) best = peak;
    }
    of_device_ = peak.origin;
    const double sum = ranks_.sum(part_ * peak.flops_per_s);
    if (sum > flops_per_s_) is_reached_ = false;
    flops_per_s_ = std::max(flops_per_s_, sum);
    ++measured_;
}

void RunPeak::see(double reached) {
    const double most = ranks_.max(reached);
    while (most > kSuspicious * flops_per_s_ && measured_ < kMostMeasurements)
        take(device_.peak(compute_type_, kAgainSeconds));
    if (most <= flops_per_s_) return;
    flops_per_s_ = most;
    is_reached_ = true;
}

std::string RunPeak::origin() const {
    std::string text = is_reached_ ? "what the run itself reached, more than was measured: " + of_device_ : of_device_;
    if (!shared_.empty()) text += ", " + shared_;
    if (measured_ > 1) text += concat(", measured ", measured_, " times");
    return text;
}

}  // namespace tutti::train
