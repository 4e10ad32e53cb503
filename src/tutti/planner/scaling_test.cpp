// Failures and the course's tables against numbers that others computed.
#include "tutti/planner/scaling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tutti/planner/course_tables.h"
#include "tutti/simulate/rehearsed.h"

namespace tutti::planner {
namespace {

TEST(Goodput, TheIntervalIsYoungsAndDalys) {
    // A job that fails every 3 h, checkpoints of 60 s: sqrt(2 * 60 * 10800) = 1138.4 s, 19 minutes.
    const Reliability r{10800, 60, 0};
    EXPECT_NEAR(checkpoint_interval(r), 1138.42, 0.01);
    // To first order it loses C/T + T/2M = 60/1138 + 1138/21600 = 10.5 %.
    EXPECT_NEAR(goodput(r, checkpoint_interval(r)), 1 - 0.1054, 0.006);
}

TEST(Goodput, IsBestNearTheInterval) {
    const Reliability r{3600, 20, 300};
    const double T = checkpoint_interval(r), best = goodput(r, T);
    EXPECT_GT(best, goodput(r, T / 2));
    EXPECT_GT(best, goodput(r, T * 2));
}

TEST(Goodput, IsWholeWithoutFailuresAndCheckpoints) {
    EXPECT_NEAR(goodput({1e15, 0, 0}, 1000), 1, 1e-9);
    EXPECT_NEAR(goodput({1e15, 100, 0}, 900), 0.9, 1e-9);  // 900 of 1000 s
}

// Expected time for an interval, by simulation of what it says: work, a checkpoint, restarts that may fail too.
TEST(Goodput, IsWhatASimulationOfFailuresGives) {
    const Reliability r{500, 10, 40};
    const double interval = 90;
    uint64_t state = 88172645463325252ull;
    const auto until_failure = [&] {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        return -r.mtbf_s * std::log((double(state >> 11) + 0.5) / 9007199254740992.0);
    };
    double elapsed = 0;
    constexpr int kIntervals = 200000;
    for (int i = 0; i < kIntervals; ++i) {
        double needed = interval + r.checkpoint_s;
        for (double failure = until_failure(); failure < needed; failure = until_failure()) {
            elapsed += failure;
            needed = r.restart_s + interval + r.checkpoint_s;
        }
        elapsed += needed;
    }
    // An interval takes 134 s on average with a deviation below 200 s: 0.33 % of the mean of 200,000, three times that.
    EXPECT_NEAR(goodput(r, interval), interval * kIntervals / elapsed, 0.01);
}

// Copies in memory, by simulation: work in pieces that end with a copy, failures at any time, of which some need the
// disk. The formula is of first order in 1 / MTBF, and pauses and restarts fail too in what is simulated.
TEST(Goodput, WithCopiesInMemoryIsWhatASimulationGives) {
    const Reliability r{.mtbf_s = 20000,
                        .checkpoint_s = 10,
                        .restart_s = 40,
                        .memory_every_s = 60,
                        .memory_s = 1,
                        .memory_lag_s = 25,
                        .disk_share = 0.2};
    const double interval = checkpoint_interval(r);
    EXPECT_NEAR(interval, std::sqrt(2 * 10 * 20000 / 0.2), 1e-9);
    std::mt19937_64 random(62);
    std::exponential_distribution<double> until_failure(1 / r.mtbf_s);
    std::bernoulli_distribution needs_disk(r.disk_share);
    double elapsed = 0, kept = 0, on_disk = 0, failure = until_failure(random);
    while (elapsed < 2e8) {
        // To the next copy, which may be a checkpoint too.
        const bool saves = kept + r.memory_every_s >= on_disk + interval;
        const double piece = r.memory_every_s + r.memory_s + (saves ? r.checkpoint_s : 0);
        if (failure > piece) {
            failure -= piece;
            elapsed += piece;
            kept += r.memory_every_s;
            if (saves) on_disk = kept;
            continue;
        }
        const bool disk = needs_disk(random);
        // The newest copy is not whole yet: the one before serves.
        if (failure < r.memory_lag_s && kept > on_disk) kept -= r.memory_every_s;
        if (disk) kept = on_disk;
        elapsed += failure + r.restart_s + (disk ? r.checkpoint_s : 0);
        failure = until_failure(random);
    }
    EXPECT_NEAR(goodput(r, interval), kept / elapsed, 0.002);
    // And more than without copies, at the best interval of either.
    const Reliability without{r.mtbf_s, r.checkpoint_s, r.restart_s};
    EXPECT_GT(goodput({.mtbf_s = 20000,
                       .checkpoint_s = 10,
                       .restart_s = 40,
                       .memory_every_s = 60,
                       .memory_s = 0.1,
                       .disk_share = 0.05},
                      interval),
              goodput(without, checkpoint_interval(without)));
}

TEST(Scaling, CopiesInMemoryNeedASecondNode) {
    const hardware::Cluster cluster = hardware::cluster_named("h100");
    const Reliability one = reliability_of(cluster, 8, 96e9, {}, 30), many = reliability_of(cluster, 64, 96e9, {}, 30);
    EXPECT_EQ(one.disk_share, 1);
    EXPECT_EQ(many.disk_share, 0.05);
    EXPECT_DOUBLE_EQ(one.memory_s, 3);  // 12 GB a rank at 4 GB/s
    EXPECT_DOUBLE_EQ(one.memory_lag_s, 12);
    EXPECT_DOUBLE_EQ(many.memory_s, 0.375);
    EXPECT_DOUBLE_EQ(reliability_of(cluster, 8, 96e9, {}, 10).memory_s, 5);  // the next one waits for 2 s
    EXPECT_DOUBLE_EQ(reliability_of(cluster, 8, 96e9, {}, 30, false).memory_s, 12);
    EXPECT_EQ(reliability_of(cluster, 8, 96e9, {}, 30, false).memory_lag_s, 0);
    EXPECT_EQ(reliability_of(cluster, 64, 96e9, {}).memory_every_s, 0);
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
        EXPECT_NEAR(row.reliability.mtbf_s, 50000.0 * 3600 / row.gpus, 1e-6);
        // 8.03e9 parameters x 12 bytes, f32 masters and moments, 1 GB/s of each of gpus / 8 nodes.
        EXPECT_NEAR(row.reliability.checkpoint_s, 8.0303e9 * 12 / (row.gpus / 8 * 1e9), 0.01);
        const double per_second = 2.0 * row.gpus / 3600;
        EXPECT_NEAR(row.dollars_per_billion_tokens, per_second / (row.tokens_per_s * row.goodput) * 1e9, 1e-6);
    }
    EXPECT_GT(rows.front().goodput, rows.back().goodput);
    Request big = r;
    big.run.model = spec::preset("llama3-405b");
    EXPECT_NE(scale(big, {.first = 8, .last = 8}).front().problem, "");
}

double cell(const Table& t, size_t row, size_t column) { return t.rows[row][column].get<double>(); }

// By hand, from the formulas.
TEST(CourseTables, HaveTheTextbooksNumbers) {
    const Table bytes = bytes_of_a_parameter();
    const double sums[] = {16, 18, 16, 12, 12, 8, 12.03, 10.03, 6.03, 14, 12, 14, 14};
    ASSERT_EQ(bytes.rows.size(), std::size(sums));
    for (size_t row = 0; row < std::size(sums); ++row) EXPECT_NEAR(cell(bytes, row, 4), sums[row], 2e-3) << row;
    // 340 B in 18 bytes, and in 12, over 64: 2 + 4 + 12 and 0 + 2 + 10 bytes, each cut as its stage says.
    autograd::Parameter matrix{.name = "w", .shape = {1, 340000000000}, .role = autograd::Role::column};
    const Table state = state_of_a_device("matrices", {&matrix}, 64);
    EXPECT_NEAR(cell(state, 1, 2), 340e9 * 18, 1);
    EXPECT_NEAR(cell(state, 1, 3), 340e9 * (2 + 4 + 12 / 64.0), 1);
    EXPECT_NEAR(cell(state, 1, 4), 340e9 * (2 + (4 + 12) / 64.0), 1);
    EXPECT_NEAR(cell(state, 1, 5), 340e9 * (4 + 12) / 64, 1);  // masters alone
    EXPECT_NEAR(cell(state, 3, 2), 340e9 * 14, 1);
    EXPECT_NEAR(cell(state, 3, 5), 340e9 * 12 / 64, 1);
    const Table zero = zero_stages();  // 70 B over 64: 1120, 293.125, 155.3125, 17.5 GB
    EXPECT_NEAR(cell(zero, 4, 4), 1120e9, 1);
    EXPECT_NEAR(cell(zero, 5, 4), 293.125e9, 1);
    EXPECT_NEAR(cell(zero, 6, 4), 155.3125e9, 1);
    EXPECT_NEAR(cell(zero, 7, 4), 17.5e9, 1);
    // sbh = 25165824; 5as/h = 80: 34 + 80 = 114 times it is 2.869 GB.
    EXPECT_NEAR(cell(activations_of_a_layer(), 0, 2), 25165824.0 * 114, 1);
    EXPECT_NEAR(cell(activations_of_a_layer(), 1, 2), 25165824.0 * 23, 1);
    EXPECT_NEAR(cell(pipeline_bubbles(), 1, 2), 7.0 / 32, 1e-12);
    EXPECT_NEAR(cell(pipeline_bubbles(), 2, 2), 7.0 / 64, 1e-12);
}

TEST(CourseTables, TheSystemAgreesWithTheFormulas) {
    const Table bytes = bytes_of_a_parameter(), zero = zero_stages(), bubbles = pipeline_bubbles(),
                activations = activations_of_a_layer(), volumes = ring_volumes(), rates = utilisation();
    for (size_t row = 0; row < bytes.rows.size(); ++row) EXPECT_NEAR(cell(bytes, row, 5), cell(bytes, row, 4), 1e-9);
    for (size_t row = 0; row < zero.rows.size(); ++row)
        EXPECT_NEAR(cell(zero, row, 5), cell(zero, row, 4), 1e-6 * cell(zero, row, 4));
    // No masks of dropout: 2 bytes of 34 where they are not shared out, and nothing else, is missing.
    for (size_t row = 0; row < activations.rows.size(); ++row)
        EXPECT_NEAR(cell(activations, row, 3) / cell(activations, row, 2), 0.97, 0.06);
    for (size_t row = 0; row < 4; ++row)
        EXPECT_NEAR(cell(bubbles, row, 3), cell(bubbles, row, 2), 0.01);  // of schedules whose bubble is not zero
    for (size_t row = 0; row < volumes.rows.size(); ++row)
        EXPECT_NEAR(cell(volumes, row, 3), cell(volumes, row, 2), 0.01 * cell(volumes, row, 2));
    for (size_t row = 0; row < rates.rows.size(); ++row) {
        EXPECT_NEAR(cell(rates, row, 5), cell(rates, row, 4), 0.003);     // MFU by the formula, published
        EXPECT_NEAR(cell(rates, row, 6), cell(rates, row, 5), 0.001);     // by our FLOPs
        EXPECT_NEAR(cell(rates, row, 8), cell(rates, row, 7), 0.003);     // HFU
        EXPECT_NEAR(cell(rates, row, 3) / cell(rates, row, 2), 1, 0.08);  // simulated time, measured
    }
}

// The slides: N = 4 computes 8 and holds 4; recomputed from the first input 14 and 2.
TEST(CourseTables, AChainIsPlayedAsItsFormulasSay) {
    const Table chain = checkpointed_chain();
    ASSERT_EQ(chain.rows.size(), 8u);
    for (size_t row = 0; row < chain.rows.size(); ++row) {
        EXPECT_EQ(cell(chain, row, 4), cell(chain, row, 3)) << row;
        EXPECT_EQ(cell(chain, row, 7), cell(chain, row, 6)) << row;
    }
    EXPECT_EQ(cell(chain, 0, 4), 8);
    EXPECT_EQ(cell(chain, 0, 7), 4);
    EXPECT_EQ(cell(chain, 1, 4), 14);
    EXPECT_EQ(cell(chain, 1, 7), 2);
}

TEST(CourseTables, PrintEveryRow) {
    for (const Table& table : course_tables()) {
        const std::string text = render(table);
        for (const auto& row : table.rows) {
            ASSERT_EQ(row.size(), table.columns.size()) << table.id;
            if (row[0].is_string()) {
                EXPECT_NE(text.find(row[0].text()), std::string::npos);
            }
        }
        EXPECT_EQ(to_json(table)["rows"].size(), table.rows.size());
    }
}

}  // namespace
}  // namespace tutti::planner
