#include "tutti/train/run_peak.h"

#include <gtest/gtest.h>

#include <vector>

#include "tutti/base/error.h"
#include "tutti/comm/threads/thread_world.h"

namespace tutti::train {
namespace {

// A CPU whose peak is what a list says, one figure a measurement.
class ListedDevice final : public Device {
  public:
    ListedDevice(std::string name, int threads, std::vector<double> peaks)
        : name_(std::move(name)), cpu_(make_cpu_device(threads)), peaks_(std::move(peaks)) {}
    std::string_view backend() const override { return "cpu"; }
    bool host_readable() const override { return true; }
    std::string name() const override { return name_; }
    std::string model() const override { return cpu_->model(); }
    Allocator& memory() override { return cpu_->memory(); }
    std::vector<MemoryLimit> memory_limits() override { return cpu_->memory_limits(); }
    const Stream& stream() const override { return cpu_->stream(); }
    void copy_in(void*, const void*, int64_t) override {}
    void copy_out(void*, const void*, int64_t) override {}
    std::unique_ptr<PendingHostCopy> copy_to_host_async(const void*, int64_t) override { return nullptr; }
    void copy(void*, const void*, int64_t) override {}
    std::shared_ptr<SideWork> copy_async(void*, const void*, int64_t) override { return nullptr; }
    void synchronize() override {}
    std::unique_ptr<Recording> record(const std::function<void()>&) override { return nullptr; }
    std::unique_ptr<Device> make_offload_device(const std::string&) override { return nullptr; }
    ArithmeticPeak peak(ComputeType, double) override {
        const size_t last = peaks_.size() - 1;
        return {peaks_[std::min(measured_++, last)], "listed"};
    }

  private:
    std::string name_;
    std::unique_ptr<Device> cpu_;
    std::vector<double> peaks_;
    size_t measured_ = 0;
};

TEST(RunPeak, IsMeasuredAgainWhenTheRunComesNearIt) {
    comm::run_ranks(1, {}, [](comm::World& world) {
        const auto ranks = world.everyone("all");
        ListedDevice device("near", 1, {100, 90, 207});
        RunPeak peak(*ranks, device, ComputeType::f32);
        EXPECT_EQ(peak.flops_per_s(), 100);
        EXPECT_EQ(peak.origin(), "listed");
        peak.see(80);
        EXPECT_EQ(peak.flops_per_s(), 100);
        peak.see(135);  // MFU of 135 %
        EXPECT_EQ(peak.flops_per_s(), 207);
        EXPECT_EQ(peak.origin(), "listed, measured 3 times");
        peak.see(135);
        EXPECT_EQ(peak.origin(), "listed, measured 3 times");
    });
}

TEST(RunPeak, IsNeverBelowWhatTheRunReached) {
    comm::run_ranks(1, {}, [](comm::World& world) {
        const auto ranks = world.everyone("all");
        ListedDevice device("slow", 1, {100});
        RunPeak peak(*ranks, device, ComputeType::f32);
        peak.see(135);
        EXPECT_EQ(peak.flops_per_s(), 135);
        EXPECT_EQ(peak.origin(), "what the run itself reached, more than was measured: listed, measured 5 times");
    });
}

TEST(RunPeak, IsMeasuredOnceForAllRunsOfAProcess) {
    comm::run_ranks(1, {}, [](comm::World& world) {
        const auto ranks = world.everyone("all");
        ListedDevice device("known", 1, {100, 90, 207});
        RunPeak first(*ranks, device, ComputeType::f32);
        EXPECT_EQ(RunPeak(*ranks, device, ComputeType::f32).flops_per_s(), 100);
        first.see(135);
        EXPECT_EQ(first.flops_per_s(), 207);
        EXPECT_EQ(RunPeak(*ranks, device, ComputeType::f32).origin(), "listed");
        EXPECT_EQ(RunPeak(*ranks, device, ComputeType::f32).flops_per_s(), 207);
        EXPECT_EQ(RunPeak(*ranks, device, ComputeType::bf16).flops_per_s(), 207);  // of another type: measured
    });
}

// Ranks with more threads together than the host has cores share them: their peaks do not add up to more than it has.
TEST(RunPeak, RanksShareTheCoresOfAHost) {
    const int cores = available_cores(), count = 2 * cores;
    comm::run_ranks(count, {}, [&](comm::World& world) {
        const auto ranks = world.everyone("all");
        ListedDevice device("shared", 1, {100});
        const RunPeak peak(*ranks, device, ComputeType::f32);
        EXPECT_DOUBLE_EQ(peak.flops_per_s(), 100.0 * cores);
        EXPECT_EQ(peak.origin(), concat("listed, ", count, " ranks with ", count, " threads on ", cores, " cores"));
    });
}

}  // namespace
}  // namespace tutti::train
