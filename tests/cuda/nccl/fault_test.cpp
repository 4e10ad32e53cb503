// One rank's GPU, NCCL or host fails in the middle of a run: the others stop within the time-out, none waits for ever,
// and the flight records name that rank. A rank that is only late does no harm.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <mutex>
#include <random>
#include <thread>

#include "tests/cuda/nccl/ranks.h"
#include "tutti/base/testing/draws.h"
#include "tutti/device/cuda/runtime.h"
#include "tutti/diagnose/flight_findings.h"

namespace tutti::comm {
namespace {

using Finding = diagnose::FlightFinding::Kind;

// hang: a kernel of the rank's GPU does not end; away: its host stops; mismatch: it calls another operation; error:
// NCCL reports an error there; slow: it is late.
enum class Harm { hang, away, mismatch, error, slow };
constexpr Harm kHarms[] = {Harm::hang, Harm::away, Harm::mismatch, Harm::error, Harm::slow};
constexpr int kRanks = 4, kRounds = 4;

struct Case {
    Harm harm;
    int rank;
    int operation;  // of 3 kRounds
    std::string text() const {
        static const char* names[] = {"hang", "away", "mismatch", "error", "slow"};
        return concat(names[static_cast<int>(harm)], " of rank ", rank, " at operation ", operation);
    }
};

class Run {
  public:
    Run(const Case& c, double timeout_s, int first_gpu) : case_(c), timeout_s_(timeout_s), first_gpu_(first_gpu) {}

    // Throws what run_ranks throws.
    void run() {
        on_gpus(kRanks, {.timeout_s = timeout_s_, .first_gpu = first_gpu_}, [&](World& world, Device& device) {
            try {
                work(world, device);
            } catch (const std::exception& error) {
                const std::lock_guard lock(mutex_);
                records_.push_back(world.recorder().record(world.rank(), kRanks, cause_of(error), error.what()));
                throw;
            }
        });
    }
    diagnose::FlightFinding finding() const { return diagnose::find_divergence(records_, kRanks).at(0); }
    size_t records() const { return records_.size(); }

  private:
    bool here(World& world, int operation) const { return world.rank() == case_.rank && operation == case_.operation; }
    void work(World& world, Device& device) {
        const auto group = world.everyone("dp"), ring = world.everyone("cp");
        constexpr int64_t n = 8;
        const auto tensor = [&](int64_t count) {
            std::vector<float> values(static_cast<size_t>(count), static_cast<float>(world.rank() + 1));
            return Tensor::from_host<float>(device, {count}, values, Purpose::communication);
        };
        for (int k = 0; k < 3 * kRounds; ++k) {
            const Tensor x = tensor(kRanks * n), part = tensor(n), sent = tensor(n), received = tensor(n);
            if (here(world, k)) harm(world, device);
            if (here(world, k) && case_.harm == Harm::mismatch) group->broadcast(x, 0).wait();
            const float sum = 10;
            Work work = k % 3 == 0   ? group->all_reduce(x)
                        : k % 3 == 1 ? group->reduce_scatter(x, part)
                                     : group->all_gather(part, x);
            // Messages of another group are in flight at the same time.
            Work send = ring->send(sent, (world.rank() + 1) % kRanks);
            Work receive = ring->receive(received, (world.rank() + kRanks - 1) % kRanks);
            ring->start_messages();
            work.wait();
            send.wait();
            receive.wait();
            check(received.to_host<float>()[5] == static_cast<float>((world.rank() + kRanks - 1) % kRanks + 1),
                  "a message");
            if (k % 3 == 0) check(x.to_host<float>()[5] == sum, "all_reduce");
            if (k % 3 == 1) check(part.to_host<float>()[5] == sum, "reduce_scatter");
            if (k % 3 == 2) check(x.to_host<float>()[n] == 2, "all_gather");
        }
    }
    void harm(World& world, Device& device) {
        // Waits until the others have given up.
        const auto stay = [&world] {
            while (true) {
                world.progress().check_abort();
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
        };
        const auto hang = [stay] {
            try {
                stay();
            } catch (const Aborted&) {  // a kernel throws nothing
            }
        };
        switch (case_.harm) {
            case Harm::hang: return emulation::enqueue(static_cast<cudaStream_t>(device.stream().native), hang);
            case Harm::away: return stay();
            case Harm::mismatch: return;
            case Harm::error: return fake_nccl().fault(FakeFault::error);
            case Harm::slow: return fake_nccl().fault(FakeFault::slow, 20);
        }
    }

    const Case case_;
    const double timeout_s_;
    const int first_gpu_;
    std::mutex mutex_;
    std::vector<FlightRecord> records_;
};

// "" when the run ended as expected.
std::string judge(const Case& c, int first_gpu = 0) {
    // A busy machine delays healthy ranks too, so slow ranks get a long time-out.
    const double timeout_s = c.harm == Harm::slow || c.harm == Harm::error ? 30 : 2;
    Run run(c, timeout_s, first_gpu);
    const auto begin = std::chrono::steady_clock::now();
    std::string said;
    try {
        run.run();
    } catch (const std::exception& error) {
        said = error.what();
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (c.harm == Harm::slow) return said.empty() ? "" : concat(c.text(), ": ", said);
    if (said.empty()) return concat(c.text(), " was not noticed");
    if (seconds > 20) return concat(c.text(), ": ended after ", seconds, " s");
    if (run.records() != kRanks) return concat(c.text(), ": ", run.records(), " ranks ended by an error");
    const diagnose::FlightFinding finding = run.finding();
    const Finding expected = c.harm == Harm::mismatch ? Finding::different
                             : c.harm == Harm::error  ? Finding::failed
                                                      : Finding::behind;
    if (finding.kind != expected || finding.ranks != std::vector<int>{c.rank})
        return concat(c.text(), ": the flight records say: ", finding.text);
    if (c.harm == Harm::error && said.find("remote process exited") == std::string::npos)
        return concat(c.text(), ": the error is ", said);
    if (c.harm != Harm::error && said.find("(comm.timeout_s)") == std::string::npos)
        return concat(c.text(), ": the error is ", said);
    return "";
}

TEST(NcclFaults, EachIsNamed) {
    fake_nccl();
    for (const Harm harm : kHarms) EXPECT_EQ(judge({harm, 2, 4}), "");
    EXPECT_EQ(fake_nccl().live(), 0) << "communicators that were neither destroyed nor aborted";
}

// Ten worlds at a time, each on its own GPUs, which memory that is freed waits for: a fault mostly waits for its
// time-out.
TEST(NcclFaults, AtRandom) {
    constexpr int kWorlds = 10;
    fake_nccl();
    emulation::set_gpus(kWorlds * kRanks);
    const int faults = tutti::testing::draws(150, 1000);
    std::atomic<int> next{0};
    std::mutex mutex;
    std::vector<std::string> wrong;
    std::vector<std::thread> threads;
    for (int t = 0; t < kWorlds; ++t)
        threads.emplace_back([&, t] {
            for (int i = next++; i < faults; i = next++) {
                std::minstd_rand random(static_cast<unsigned>(i + 1));
                random.discard(3);
                const Case c{kHarms[i % 5], static_cast<int>(random() % kRanks),
                             static_cast<int>(random() % (3 * kRounds))};
                const std::string said = judge(c, t * kRanks);
                const std::lock_guard lock(mutex);
                if (!said.empty()) wrong.push_back(concat("fault ", i, ": ", said));
            }
        });
    for (std::thread& thread : threads) thread.join();
    for (const std::string& said : wrong) ADD_FAILURE() << said;
}

// --- a rank whose own thread cannot return without help
// -------------------------------------------------------------------

// Rank 1 of two does `other` and then nothing, until rank 0 has given up; rank 0 does `own`. Returns the causes by
// rank. Ends the program when the ranks do not end.
using Part = std::function<void(World&, Device&, Communicator&)>;
std::vector<Cause> causes_of(double timeout_s, const Part& own, const Part& other) {
    std::vector<Cause> causes(2);
    std::promise<void> ended;
    std::thread ranks([&] {
        try {
            on_gpus(2, {.timeout_s = timeout_s}, [&](World& world, Device& device) {
                try {
                    const auto group = world.everyone("dp");
                    (world.rank() == 0 ? own : other)(world, device, *group);
                    while (world.rank() == 1) world.progress().check_abort();
                } catch (const std::exception& error) {
                    causes[static_cast<size_t>(world.rank())] = cause_of(error);
                    throw;
                }
            });
        } catch (const std::exception&) {  // noted above
        }
        ended.set_value();
    });
    if (ended.get_future().wait_for(std::chrono::seconds(60)) != std::future_status::ready) {
        std::fprintf(stderr, "the ranks wait for each other for ever\n");
        std::_Exit(1);
    }
    ranks.join();
    return causes;
}

Tensor ones(Device& device, int64_t n) {
    return Tensor::from_host<float>(device, {n}, std::vector<float>(static_cast<size_t>(n), 1.0f),
                                    Purpose::communication);
}

const std::vector<Cause> kTimedOutAndTold = {Cause::timed_out, Cause::told};

// An allocator gives memory back while an operation is in flight that only the abort ends. cudaFree would wait for it
// with the driver's lock, which the watching thread needs.
TEST(NcclFaults, ARankThatFreesMemoryDuringAnOperationIsReleased) {
    const auto own = [](World&, Device& device, Communicator& group) {
        const Tensor x = ones(device, 8), y = ones(device, 8);
        group.reserve_reductions(device, DType::f32, DType::f32);
        static_cast<void>(ones(device, 16 << 20));  // a segment that is free now
        const Work first = group.all_reduce(x);
        device.memory().trim();
        group.all_reduce(y).wait();
    };
    EXPECT_EQ(causes_of(1, own, [](auto&&...) {}), kTimedOutAndTold);
    EXPECT_EQ(fake_nccl().live(), 0);
}

// The communicators of a GPU are aborted as one group: an abort alone would wait for the other group's operation.
TEST(NcclFaults, OperationsOfTwoGroupsAreAbortedTogether) {
    const auto own = [](World& world, Device& device, Communicator& dp) {
        const auto tp = world.everyone("tp");
        const Tensor x = ones(device, 8), y = ones(device, 8);
        const Work first = dp.all_reduce(x), second = tp->all_reduce(y);
        device.synchronize();
        dp.all_gather(ones(device, 4), x).wait();
        device.synchronize();
        x.to_host<float>();
    };
    EXPECT_EQ(causes_of(1, own, [](World& world, auto&&...) { world.everyone("tp"); }), kTimedOutAndTold);
    EXPECT_EQ(fake_nccl().live(), 0);
}

// A rank that ends without an error, and whose operation no partner joins, waits for nothing without a time-out.
TEST(NcclFaults, ARankThatLeavesAnOperationBehindEnds) {
    std::atomic<bool> ended{false};
    on_gpus(2, {.timeout_s = 1}, [&](World& world, Device& device) {
        if (world.rank() == 0) {
            const auto group = world.everyone("dp");
            static_cast<void>(group->all_reduce(ones(device, 8)));
        } else {
            const auto group = world.everyone("dp");
            while (!ended) std::this_thread::yield();
            return;
        }
        ended = true;
    });
    EXPECT_EQ(fake_nccl().live(), 0);
}

// A first message connects two ranks inside its call, which no poll ends: the watching thread does.
TEST(NcclFaults, ARankThatWaitsInsideAFirstMessageIsReleased) {
    const auto own = [](World&, Device& device, Communicator& group) {
        const Tensor x = ones(device, 1 << 20);
        group.all_reduce(x).wait();  // large: messages to every rank
        x.to_host<float>();
    };
    EXPECT_EQ(causes_of(1, own, [](auto&&...) {}), kTimedOutAndTold);
    EXPECT_EQ(fake_nccl().live(), 0);
}

TEST(NcclFaults, ARankInsideACallOfNcclIsReleased) {
    const auto own = [](World&, Device& device, Communicator& group) {
        const Tensor x = ones(device, 8), y = ones(device, 8);
        const Work first = group.all_reduce(x);
        fake_nccl().fault(FakeFault::stuck);
        group.all_reduce(y).wait();
    };
    EXPECT_EQ(causes_of(1, own, [](auto&&...) {}), kTimedOutAndTold);
    EXPECT_EQ(fake_nccl().live(), 0);
}

TEST(NcclFaults, ARankInsideASplitIsReleased) {
    const auto own = [](World& world, Device& device, Communicator& group) {
        const Tensor x = ones(device, 8);
        const Work first = group.all_reduce(x);
        fake_nccl().fault(FakeFault::stuck);
        world.everyone("tp");
    };
    // Both time out, and the later one may hear of the other's failure first; neither sees an error of NCCL.
    for (const Cause cause : causes_of(1, own, [](World&world, auto&&...) { world.everyone("tp"); }))
        EXPECT_NE(cause, Cause::failed);
    EXPECT_EQ(fake_nccl().live(), 0);
}

// The partner of a communicator that is made has failed: no time-out is needed to see it.
TEST(NcclFaults, ARankThatMakesACommunicatorIsTold) {
    const auto make = [](World& world, auto&&...) { world.everyone("tp"); };
    const auto fail = [](World& world, auto&&...) {
        fake_nccl().fault(FakeFault::error);
        world.everyone("tp");
    };
    EXPECT_EQ(causes_of(30, make, fail), (std::vector<Cause>{Cause::told, Cause::failed}));
    EXPECT_EQ(fake_nccl().live(), 0) << "communicators that were neither destroyed nor aborted";
}

}  // namespace
}  // namespace tutti::comm
