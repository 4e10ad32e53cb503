// NCCL itself on the GPUs of this machine, ranks as threads: the conformance suite in the tree's order, NCCL's own
// order within rounding, and the abort of an operation whose partner never arrives.
#include <gtest/gtest.h>

#include <cmath>

#include "tutti/comm/nccl/nccl_world.h"
#include "tutti/comm/testing/conformance.h"
#include "tutti/comm/threads/thread_world.h"
#include "tutti/device/cuda/cuda_device.h"

namespace tutti::comm {
namespace {

void on_gpus(int ranks, const NcclOptions& options, const std::function<void(World&, Device&)>& body) {
    run_ranks(ranks, {.timeout_s = 60, .watched = true}, [&](World& threads) {
        const auto device = make_cuda_device(threads.rank());
        const auto world = nccl_world(threads, *device, options);
        body(*world, *device);
    });
}

int gpus() { return static_cast<int>(find_gpus().found.size()); }

// With one GPU only groups of one rank can run, without GPUs none: such a test is skipped, not passed.
class NcclOnGpus : public testing::Test {
  protected:
    void SetUp() override {
        if (gpus() == 0) GTEST_SKIP() << "no GPU: " << find_gpus().why_none;
    }
};

Tensor filled(Device& device, int64_t n, float value) {
    return Tensor::from_host<float>(device, {n}, std::vector<float>(static_cast<size_t>(n), value),
                                    Purpose::communication);
}

TEST_F(NcclOnGpus, Conforms) {
    for (int n = 1; n <= gpus(); ++n)
        on_gpus(n, {.timeout_s = 60}, [](World& world, Device& device) {
            for (const auto& check : conformance::checks()) check.body(world, device);
        });
}

TEST_F(NcclOnGpus, FastSumsAreNearTheTrees) {
    on_gpus(gpus(), {.tree = false, .timeout_s = 60}, [](World& world, Device& device) {
        const auto group = world.everyone("dp");
        const Tensor x = filled(device, 1 << 20, 0.1f * static_cast<float>(world.rank() + 1));
        group->all_reduce(x).wait();
        const int n = world.size();
        const double sum = 0.05 * n * (n + 1);
        // n - 1 roundings of at most 2^-24 of a partial sum, and the roundings of the inputs.
        check(std::abs(x.to_host<float>()[12345] - sum) <= n * std::ldexp(sum, -23),
              "all_reduce: ", x.to_host<float>()[12345], ", expected ", sum);
    });
}

TEST_F(NcclOnGpus, AnOperationWithoutItsPartnerIsAborted) {
    if (gpus() == 1) GTEST_SKIP() << "needs two GPUs: one rank has no partner to wait for";
    EXPECT_THROW(on_gpus(2, {.timeout_s = 3},
                         [](World& world, Device& device) {
                             const auto group = world.everyone("dp");
                             group->all_reduce(filled(device, 8, 1)).wait();
                             device.synchronize();
                             if (world.rank() == 1) {
                                 world.progress().wait_until([] { return false; },
                                                             [] { return std::string("nothing"); });
                             }
                             group->all_reduce(filled(device, 8, 1)).wait();
                             device.synchronize();
                         }),
                 TimedOut);
}

}  // namespace
}  // namespace tutti::comm
