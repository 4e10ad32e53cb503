// train/start_checks_test.cpp: differences between ranks are named; whether a run fits: the needs of each rank under
// each limit, their sum over the ranks of a host, and the messages.
#include "tutti/train/start_checks.h"

#include <gtest/gtest.h>

#include "tutti/base/to_size.h"
#include "tutti/comm/threads/thread_world.h"
#include "tutti/device/device.h"
#include "tutti/device/meta/meta_device.h"
#include "tutti/spec/toml.h"

namespace tutti::train {
namespace {

std::string message_of(const std::vector<std::string>& lines) {
    try {
        comm::run_ranks(static_cast<int>(lines.size()), {.timeout_s = 60}, [&](comm::World& world) {
            check_same(*world.everyone("recipe"), lines[to_size(world.rank())]);
        });
    } catch (const UsageError& e) {
        return e.what();
    }
    return "";
}

TEST(SameRun, EqualRanksAreFine) { EXPECT_EQ(message_of({"a = 1\nb = 2\n", "a = 1\nb = 2\n"}), ""); }

TEST(SameRun, NamesKeysValuesRanksAndHosts) {
    const std::string host = host_name();
    EXPECT_EQ(message_of({"a = 1\nb = 2\n", "a = 1\nb = 3\n", "a = 1\nb = 2\nc = x = y\n"}),
              "the ranks of this run were not started alike:\n  b: 2 on ranks 0 (" + host + "), 2 (" + host +
                  "); 3 on rank 1 (" + host + ")\n  c: x = y on rank 2 (" + host +
                  "); the others have none\nstart all of them with the same program, config and data");
}

TEST(SameRun, ARecipeHasEveryKeyOfTheConfig) {
    const spec::RunSpec run = spec::parse_text("", "test", {"optimizer.lr=0.01", "data.train=a.txt"});
    const std::string recipe = recipe_of(run, "runs/a");
    for (const char* line : {"--out = runs/a\n", "optimizer.lr = 0.01\n", "train.seed = 1234\n", "model.width = "})
        EXPECT_NE(recipe.find(line), std::string::npos) << line << "\n" << recipe;
}

constexpr int64_t kMiB = 1 << 20;

struct Said {
    std::string error, warning;  // of rank 0
};

// Rank r needs of each limit of `limits[r]` so many MiB; 100 MiB are available under each.
Said said(const std::vector<std::vector<std::pair<std::string, int64_t>>>& ranks, bool force = false) {
    Said said;
    try {
        comm::run_ranks(static_cast<int>(ranks.size()), {.timeout_s = 60}, [&](comm::World& world) {
            std::vector<MemoryNeed> needs;
            for (const auto& [limit, mib] : ranks[to_size(world.rank())])
                needs.push_back({{limit, 200 * kMiB, 100 * kMiB}, mib * kMiB});
            check_memory(*world.everyone("memory"), needs, force, [&](const std::string& message) {
                if (world.rank() == 0) said.warning = message;
            });
        });
    } catch (const UsageError& e) {
        said.error = e.what();
    }
    return said;
}

TEST(MemoryCheck, AddsUpWhatTheRanksNeedUnderOneLimit) {
    const Said refused = said({{{"a", 30}, {"b", 1}, {"a", 20}}, {{"a", 30}}, {{"a", 25}, {"b", 1}}});
    EXPECT_EQ(refused.error,
              "this run does not fit: 3 ranks together need 105.0 MiB of memory, saves included, and 100.0 MiB are "
              "available (" +
                  host_name() +
                  ", a); try a smaller train.micro_batch, recompute.policy = \"full\", parallel.zero = 3 over more "
                  "hosts, [offload], or a smaller model; --force starts it nevertheless");
    EXPECT_EQ(refused.warning, "");
    const Said apart = said({{{"a", 80}}, {{"b", 80}}, {{"c", 80}}});
    EXPECT_EQ(apart.error + apart.warning, "");
}

TEST(MemoryCheck, JudgesEqualRanksThatAreNotThere) {
    const std::vector<MemoryNeed> needs = {{{"a", 200 * kMiB, 100 * kMiB}, 30 * kMiB},
                                           {{"b", 200 * kMiB, 50 * kMiB}, 5 * kMiB}};
    const MemoryVerdict two = judge_memory(needs, 2), three = judge_memory(needs, 3), four = judge_memory(needs, 4);
    EXPECT_TRUE(two.fits() && !two.close());
    EXPECT_TRUE(three.fits() && !three.close());  // 90 of 100 MiB
    EXPECT_TRUE(!four.fits() && four.close());
    EXPECT_EQ(four.text(), "4 ranks together need 120.0 MiB of memory, saves included, and 100.0 MiB are available (" +
                               host_name() + ", a)");
    EXPECT_EQ(judge_memory({}, 4).limit, "");
}

TEST(MemoryCheck, WarnsWhenItIsCloseOrForced) {
    EXPECT_EQ(said({{{"a", 90}}}).warning, "");
    EXPECT_EQ(said({{{"a", 1}, {"b", 91}}}).warning,
              "memory is short: a rank needs 91.0 MiB of memory, saves included, and 100.0 MiB are available (" +
                  host_name() + ", b)");
    EXPECT_EQ(said({{{"a", 100}}}).error, "");
    EXPECT_NE(said({{{"a", 101}}}).error, "");
    const Said forced = said({{{"a", 60}}, {{"a", 60}}}, true);
    EXPECT_EQ(forced.error, "");
    EXPECT_EQ(forced.warning,
              "this run does not fit and may be killed (--force): 2 ranks together need 120.0 MiB of memory, saves "
              "included, and 100.0 MiB are available (" +
                  host_name() + ", a)");
    EXPECT_EQ(said({{}, {}}).warning, "");  // no limit is known
}

// Needed bytes for each limit, in the order of needs_of().
std::vector<int64_t> bytes_of(const std::vector<MemoryNeed>& needs) {
    std::vector<int64_t> bytes;
    for (const MemoryNeed& need : needs) bytes.push_back(need.bytes);
    return bytes;
}

TEST(MemoryCheck, ARankNeedsItsPeakAndTheCopiesOfItsSaves) {
    const rehearsal::MemoryPlan plan{.at_peak = {{100, 20, 3}}, .offloaded = 4000, .reserved = 50000, .saved = 600000};
    spec::RunSpec run;
    run.train.steps = 10;
    run.checkpoint.every = 5;
    const size_t of_host = host_memory_limits().size();
    const auto repeated = [&](int64_t bytes) { return std::vector<int64_t>(of_host, bytes); };
    const auto joined = [](std::vector<int64_t> a, const std::vector<int64_t>& b) {
        a.insert(a.end(), b.begin(), b.end());
        return a;
    };
    // A CPU: what is offloaded is a file, what is reserved and never touched takes nothing but huge pages that are
    // begun.
    const int64_t peak = 123 + 4 * kMiB;
    const auto cpu = make_cpu_device(1);
    EXPECT_EQ(bytes_of(needs_of(plan, *cpu)), repeated(peak));
    EXPECT_EQ(bytes_of(needs_of(run, plan, *cpu)), joined(repeated(peak), repeated(600000)));
    for (const auto& [async, every] : {std::pair<bool, int64_t>{false, 5}, {true, 0}, {true, 11}}) {
        run.checkpoint.async = async;
        run.checkpoint.every = every;
        EXPECT_EQ(bytes_of(needs_of(run, plan, *cpu)), repeated(peak)) << async << every;
    }
    // Copies in memory, with those of a save and without.
    EXPECT_EQ(bytes_of(needs_of(run, plan, *cpu, 2)), joined(repeated(peak), repeated(2 * 600000)));
    run.checkpoint.every = 5;
    EXPECT_EQ(bytes_of(needs_of(run, plan, *cpu, 4)), joined(repeated(peak), repeated(5 * 600000)));
    // A GPU whose library workspace is allocated already; the last save at least goes through the host.
    const auto gpu = make_meta_device({.name = "GPU", .memory_bytes = 1 << 20, .workspace_bytes = 4096});
    const auto needs = needs_of(run, plan, *gpu);
    EXPECT_EQ(bytes_of(needs), joined({50000 - 4096}, joined(repeated(4000), repeated(600000))));
    EXPECT_EQ(needs.front().limit.origin, "GPU");
    EXPECT_EQ(needs.front().limit.available, (1 << 20) - 4096);
}

}  // namespace
}  // namespace tutti::train
