// One rank's GPU, NCCL or host fails in the middle of a run: the others stop within the time-out, none waits for ever,
// and the flight records name that rank. A rank that is only late does no harm.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <random>
#include <thread>

#include "tests/cuda/nccl/ranks.h"
#include "tutti/diagnose/flight_findings.h"

namespace tutti::comm {
namespace {

using Finding = diagnose::FlightFinding::Kind;

// hang: the rank's GPU does not end a kernel; away: its host does not go on; mismatch: it calls something else; error:
// NCCL finds one there; slow: it is late.
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
    Run(const Case& c, double timeout_s) : case_(c), timeout_s_(timeout_s) {}

    // Throws what run_ranks does.
    void run() {
        on_gpus(kRanks, {.timeout_s = timeout_s_}, [&](World& world, Device& device) {
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
        const auto group = world.everyone("dp");
        constexpr int64_t n = 8;
        const auto tensor = [&](int64_t count) {
            std::vector<float> values(static_cast<size_t>(count), static_cast<float>(world.rank() + 1));
            return Tensor::from_host<float>(device, {count}, values, Purpose::communication);
        };
        for (int k = 0; k < 3 * kRounds; ++k) {
            const Tensor x = tensor(kRanks * n), part = tensor(n);
            if (here(world, k)) harm(world, device);
            if (here(world, k) && case_.harm == Harm::mismatch) group->broadcast(x, 0).wait();
            const float sum = 10;
            if (k % 3 == 0) {
                group->all_reduce(x).wait();
                check(x.to_host<float>()[5] == sum, "all_reduce");
            } else if (k % 3 == 1) {
                group->reduce_scatter(x, part).wait();
                check(part.to_host<float>()[5] == sum, "reduce_scatter");
            } else {
                group->all_gather(part, x).wait();
                check(x.to_host<float>()[n] == 2, "all_gather");
            }
        }
    }
    void harm(World& world, Device& device) {
        // Until the others have given up.
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
    std::mutex mutex_;
    std::vector<FlightRecord> records_;
};

// "" when the run went as it should.
std::string judge(const Case& c) {
    // A machine that does other things makes healthy ranks late too: the slow ones have time.
    const double timeout_s = c.harm == Harm::slow || c.harm == Harm::error ? 30 : 1;
    Run run(c, timeout_s);
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

// Six worlds at a time: most of the time of a fault is its time-out.
TEST(NcclFaults, AThousand) {
    fake_nccl();
    std::atomic<int> next{0};
    std::mutex mutex;
    std::vector<std::string> wrong;
    std::vector<std::thread> threads;
    for (int t = 0; t < 6; ++t)
        threads.emplace_back([&] {
            for (int i = next++; i < 1000; i = next++) {
                std::minstd_rand random(static_cast<unsigned>(i + 1));
                random.discard(3);
                const Case c{kHarms[i % 5], static_cast<int>(random() % kRanks),
                             static_cast<int>(random() % (3 * kRounds))};
                const std::string said = judge(c);
                const std::lock_guard lock(mutex);
                if (!said.empty()) wrong.push_back(concat("fault ", i, ": ", said));
            }
        });
    for (std::thread& thread : threads) thread.join();
    for (const std::string& said : wrong) ADD_FAILURE() << said;
}

}  // namespace
}  // namespace tutti::comm
