// NCCL itself on the GPUs of this machine, ranks as threads: the conformance suite in the tree's order, NCCL's own
// order within rounding, and the abort of an operation whose partner never arrives.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "tutti/comm/nccl/guard.h"
#include "tutti/comm/nccl/nccl_world.h"
#include "tutti/comm/testing/conformance.h"
#include "tutti/comm/threads/thread_world.h"
#include "tutti/device/cuda/cuda_device.h"

namespace tutti::comm {
namespace {

void on_gpus(int ranks, const DeviceWorldOptions& options, const std::function<void(World&, Device&)>& body) {
    run_ranks(ranks, {.timeout_s = 60, .watched = true}, [&](World& threads) {
        const auto device = make_cuda_device(threads.rank());
        const auto world = nccl_world(threads, *device, options);
        body(*world, *device);
    });
}

int gpus() { return static_cast<int>(find_gpus().found.size()); }

// With one GPU only groups of one rank can run, without GPUs or NCCL's library none: such a test is skipped, not
// passed.
class NcclOnGpus : public testing::Test {
  protected:
    void SetUp() override {
        if (gpus() == 0) GTEST_SKIP() << "no GPU: " << find_gpus().why_none;
        try {
            std::printf("%s\n", nccl_library().c_str());
        } catch (const UsageError& missing) {
            GTEST_SKIP() << missing.what();
        }
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

// Groups of one rank leave the library out. Here one GPU goes through all that a group of several does with it: our
// configuration, a root that does not block, blocking communicators split from it, each kind of call, the end, and an
// abort of all.
TEST_F(NcclOnGpus, OneRankCallsTheLibrary) {
    on_gpus(1, {.timeout_s = 60}, [](World& world, Device& device) {
        const nccl::Api& api = nccl::api();
        nccl::Guard guard(world, device, 60);
        const auto through = [&](nccl::Result result, const char* what) { guard.check(result, what, "one"); };
        for (const bool aborted : {false, true}) {
            nccl::UniqueId id{};
            nccl::Config config;
            config.max_ctas = 16;
            nccl::Comm root = nullptr, comm = nullptr, messages = nullptr;
            through(api.get_unique_id(&id), "ncclGetUniqueId");
            through(api.comm_init_rank_config(&root, 1, id, 0, &config), "ncclCommInitRankConfig");
            guard.settle(root, "ncclCommInitRankConfig", "one");
            for (nccl::Comm* child : {&comm, &messages}) {
                nccl::Config blocking{.blocking = 1};
                blocking.max_ctas = child == &comm ? 16 : 4;
                through(api.comm_split(root, 0, 0, child, &blocking), "ncclCommSplit");
                guard.settle(root, "ncclCommSplit", "one");
                check(*child != nullptr, "ncclCommSplit is through and has made nothing");
            }

            constexpr int64_t n = 1000;
            const Tensor x = filled(device, n, 3), y = filled(device, n, 0);
            float* const from = x.view().as<float>();
            float* const to = y.view().as<float>();
            const auto side = device.side_stream();
            void* const stream = side->stream().native;
            side->begin(false);
            // Blocking: kInProgress would be a child that took its root's configuration.
            const auto complete = [&](nccl::Result result, const char* what) {
                through(result, what);
                check(result == nccl::kSuccess, what, " on a blocking communicator has not completed");
            };
            complete(api.all_reduce(from, from, n, nccl::kFloat32, nccl::kSum, comm, stream), "ncclAllReduce");
            complete(api.reduce_scatter(from, from, n, nccl::kFloat32, nccl::kSum, comm, stream), "ncclReduceScatter");
            complete(api.broadcast(from, from, n, nccl::kFloat32, 0, comm, stream), "ncclBroadcast");
            complete(api.all_gather(from, from, n, nccl::kFloat32, comm, stream), "ncclAllGather");
            through(api.group_start(), "ncclGroupStart");
            through(api.send(from, 4 * n, nccl::kBytes, 0, messages, stream), "ncclSend");
            through(api.receive(to, 4 * n, nccl::kBytes, 0, messages, stream), "ncclRecv");
            complete(api.group_end(), "ncclGroupEnd");
            side->end()->join();
            check(y.to_host<float>() == std::vector<float>(n, 3), "what one rank summed and sent to itself");

            if (aborted) through(api.group_start(), "ncclGroupStart");
            for (const nccl::Comm each : {messages, comm, root})
                if (aborted) {
                    through(api.comm_abort(each), "ncclCommAbort");
                } else {
                    through(api.comm_finalize(each), "ncclCommFinalize");
                    guard.settle(each, "ncclCommFinalize", "one");
                    through(api.comm_destroy(each), "ncclCommDestroy");
                }
            if (aborted) through(api.group_end(), "ncclGroupEnd");
        }
    });
}

TEST_F(NcclOnGpus, FastSumsAreNearTheTrees) {
    on_gpus(gpus(), {.order = SumOrder::fast, .timeout_s = 60}, [](World& world, Device& device) {
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
