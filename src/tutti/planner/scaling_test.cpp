// Failures and what a run costs, against formulas and simulations of their own.
#include "tutti/planner/scaling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tutti/simulate/rehearsed.h"

namespace tutti::planner {
namespace {

using report::GoodputTerms;

TEST(Goodput, TheIntervalIsYoungsAndDalys) {
    // A job that fails every 3 h, checkpoints of 60 s: sqrt(2 * 60 * 10800) = 1138.4 s, 19 minutes.
    const GoodputTerms r{.between_failures = 10800, .disk_stall = 60};
    EXPECT_NEAR(checkpoint_interval(r), 1138.42, 0.01);
    // To first order it loses C/T + T/2M = 60/1138 + 1138/21600 = 10.5 %.
    EXPECT_NEAR(goodput(r, checkpoint_interval(r)), 1 - 0.1054, 0.006);
}

TEST(Goodput, IsBestNearTheInterval) {
    const GoodputTerms r{.between_failures = 3600, .restart = 300, .disk_stall = 20};
    const double T = checkpoint_interval(r), best = goodput(r, T);
    EXPECT_GT(best, goodput(r, T / 2));
    EXPECT_GT(best, goodput(r, T * 2));
}

TEST(Goodput, IsWholeWithoutFailuresAndCheckpoints) {
    EXPECT_NEAR(goodput({.between_failures = 1e15}, 1000), 1, 1e-9);
    EXPECT_NEAR(goodput({.between_failures = 1e15, .disk_stall = 100}, 900), 0.9, 1e-9);  // 900 of 1000 s
}

// Expected time for an interval, by simulation of what it says: work, a checkpoint, restarts that may fail too.
TEST(Goodput, IsWhatASimulationOfFailuresGives) {
    const GoodputTerms r{.between_failures = 500, .restart = 40, .disk_stall = 10};
    const double interval = 90;
    uint64_t state = 88172645463325252ull;
    const auto until_failure = [&] {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        return -r.between_failures * std::log((double(state >> 11) + 0.5) / 9007199254740992.0);
    };
    double elapsed = 0;
    constexpr int kIntervals = 200000;
    for (int i = 0; i < kIntervals; ++i) {
        double needed = interval + r.disk_stall;
        for (double failure = until_failure(); failure < needed; failure = until_failure()) {
            elapsed += failure;
            needed = r.restart + interval + r.disk_stall;
        }
        elapsed += needed;
    }
    // An interval takes 134 s on average with a deviation below 200 s: 0.33 % of the mean of 200,000, three times that.
    EXPECT_NEAR(goodput(r, interval), interval * kIntervals / elapsed, 0.01);
}

// Copies in memory, by simulation: work in pieces that end with a copy, failures at any time, of which some need the
// disk. Seconds of training over seconds.
double simulated(const GoodputTerms& r, double interval, double seconds) {
    std::mt19937_64 random(62);
    std::exponential_distribution<double> until_failure(1 / r.between_failures);
    std::bernoulli_distribution needs_disk(r.disk_share);
    double elapsed = 0, kept = 0, on_disk = 0, failure = until_failure(random);
    while (elapsed < seconds) {
        // To the next copy, which may be a checkpoint too.
        const bool saves = kept + r.memory_every >= on_disk + interval;
        const double piece = r.memory_every + r.memory_stall + (saves ? r.disk_stall : 0);
        if (failure > piece) {
            failure -= piece;
            elapsed += piece;
            kept += r.memory_every;
            if (saves) on_disk = kept;
            continue;
        }
        const bool disk = needs_disk(random);
        // The newest copy is not whole yet: the one before serves.
        if (failure < r.memory_lag && kept > on_disk) kept -= r.memory_every;
        if (disk) kept = on_disk;
        elapsed += failure + r.restart + (disk ? r.disk_stall : 0);
        failure = until_failure(random);
    }
    return kept / elapsed;
}

// The formula is of first order in 1 / MTBF, and pauses and restarts fail too in what is simulated.
TEST(Goodput, WithCopiesInMemoryIsWhatASimulationGives) {
    const GoodputTerms r{.between_failures = 20000,
                         .restart = 40,
                         .disk_stall = 10,
                         .memory_every = 60,
                         .memory_stall = 1,
                         .memory_lag = 25,
                         .disk_share = 0.2,
                         .disk_restart = 10};
    const double interval = checkpoint_interval(r);
    EXPECT_NEAR(interval, std::sqrt(2 * 10 * 20000 / 0.2), 1e-9);
    EXPECT_NEAR(goodput(r, interval), simulated(r, interval, 2e8), 0.002);
    // And more than without copies, at the best interval of either.
    const GoodputTerms without{.between_failures = 20000, .restart = 40, .disk_stall = 10};
    EXPECT_GT(goodput({.between_failures = 20000,
                       .restart = 40,
                       .disk_stall = 10,
                       .memory_every = 60,
                       .memory_stall = 0.1,
                       .disk_share = 0.05,
                       .disk_restart = 10},
                      interval),
              goodput(without, checkpoint_interval(without)));
}

// Intervals count training: pauses as long as the training between them leave half of the time, not none.
TEST(Goodput, LongPausesAreNoPartOfTheTrainingBetweenThem) {
    const GoodputTerms r{.between_failures = 1e12, .memory_every = 5, .memory_stall = 5, .disk_share = 0.05};
    EXPECT_NEAR(goodput(r, 1000), 0.5, 1e-6);
    const GoodputTerms both{.between_failures = 50000,
                            .restart = 40,
                            .disk_stall = 50,
                            .memory_every = 20,
                            .memory_stall = 15,
                            .disk_share = 0.5,
                            .disk_restart = 50};
    EXPECT_NEAR(goodput(both, 500), simulated(both, 500, 2e8), 0.002);
}

// Without a second node every failure needs the disk: no interval between copies is lost, but one between checkpoints.
TEST(Goodput, FailuresThatNeedTheDiskLoseNoCopyBesides) {
    const GoodputTerms r{.between_failures = 50000,
                         .restart = 40,
                         .disk_stall = 2,
                         .memory_every = 500,
                         .memory_stall = 1,
                         .memory_lag = 400,
                         .disk_share = 1,
                         .disk_restart = 2};
    EXPECT_NEAR(goodput(r, 1000), simulated(r, 1000, 2e8), 0.002);
}

// Muon keeps one value for an element of the layers, AdamW, which updates embedding and head, two: with the masters
// 8 and 12 bytes.
TEST(Scaling, ACheckpointHasTheStateOfEachParametersRule) {
    spec::RunSpec run;
    run.model = spec::preset("llama3-8b");
    run.precision.compute = "bf16";
    run.optimizer.name = "muon";
    const double embedding = 128256.0 * 4096, norms = 65 * 4096, all = 8030261248;
    EXPECT_EQ(checkpoint_bytes(run), 8 * all + 4 * (2 * embedding + norms));
}

TEST(Scaling, CopiesInMemoryNeedASecondNode) {
    const hardware::Cluster cluster = hardware::cluster_named("h100");
    const GoodputTerms one = failures_of(cluster, 8, 96e9, {}, 30), many = failures_of(cluster, 64, 96e9, {}, 30);
    EXPECT_EQ(one.disk_share, 1);
    EXPECT_EQ(many.disk_share, 0.05);
    EXPECT_DOUBLE_EQ(one.memory_stall, 3);  // 12 GB a rank at 4 GB/s
    EXPECT_DOUBLE_EQ(one.memory_lag, 12);
    EXPECT_DOUBLE_EQ(many.memory_stall, 0.375);
    EXPECT_DOUBLE_EQ(failures_of(cluster, 8, 96e9, {}, 10).memory_stall, 5);  // the next one waits for 2 s
    EXPECT_DOUBLE_EQ(failures_of(cluster, 8, 96e9, {}, 30, false).memory_stall, 12);
    EXPECT_EQ(failures_of(cluster, 8, 96e9, {}, 30, false).memory_lag, 0);
    EXPECT_EQ(failures_of(cluster, 64, 96e9, {}).memory_every, 0);
}

TEST(Scaling, CopiesInMemoryLieOnTheHosts) {
    const hardware::Cluster cluster = hardware::cluster_named("h100");  // 8 a node
    spec::RunSpec run;
    EXPECT_EQ(simulate::host_memory(run, 0, 3e9, 16, cluster).copies, 0);
    run.checkpoint.memory_every = 5;
    EXPECT_EQ(simulate::host_memory(run, 0, 3e9, 4, cluster).copies, 3 * 4 * 3e9);
    run.checkpoint.async = false;
    EXPECT_EQ(simulate::host_memory(run, 0, 3e9, 8, cluster).copies, 2 * 8 * 3e9);
    const simulate::HostMemory two_nodes = simulate::host_memory(run, 0, 3e9, 16, cluster);
    EXPECT_EQ(two_nodes.copies, 4 * 8 * 3e9);
    hardware::Cluster small = cluster;
    small.host_memory = two_nodes.total() - 1;
    EXPECT_NE(simulate::host_memory_problem(two_nodes, small).find("for the copies in memory"), std::string::npos);
    small.host_memory = 2 * two_nodes.total();
    EXPECT_EQ(simulate::host_memory_problem(two_nodes, small), "");
}

TEST(Scaling, RowsAreThroughputGoodputAndMoney) {
    const Request r = request_for(spec::preset("llama3-8b"), hardware::cluster_named("h100"), 8, 512, 8192);
    const auto rows = scale(r, {.first = 8, .last = 1024, .price = 2.0});
    ASSERT_EQ(rows.size(), 8u);
    for (const ScalingRow& row : rows) {
        ASSERT_EQ(row.problem, "");
        EXPECT_NEAR(row.tokens_per_s, 512.0 * 8192 / row.best.seconds, 1e-6 * row.tokens_per_s);
        EXPECT_NEAR(row.failures.between_failures, 50000.0 * 3600 / row.gpus, 1e-6);
        // 8.03e9 parameters x 12 bytes, f32 masters and moments, 1 GB/s of each of gpus / 8 nodes.
        EXPECT_NEAR(row.failures.disk_stall, 8.0303e9 * 12 / (row.gpus / 8 * 1e9), 0.01);
        const double per_second = 2.0 * row.gpus / 3600;
        EXPECT_NEAR(row.dollars_per_billion_tokens, per_second / (row.tokens_per_s * row.goodput) * 1e9, 1e-6);
    }
    EXPECT_GT(rows.front().goodput, rows.back().goodput);
    Request big = r;
    big.run.model = spec::preset("llama3-405b");
    EXPECT_NE(scale(big, {.first = 8, .last = 8}).front().problem, "");
}

}  // namespace
}  // namespace tutti::planner
