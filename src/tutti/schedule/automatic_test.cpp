// The search against the generators at the same memory, and against what the zero-bubble papers' schedules reach.
#include "tutti/schedule/automatic.h"

#include <gtest/gtest.h>

#include <random>

#include "tutti/base/error.h"
#include "tutti/schedule/validate.h"

namespace tutti::schedule {
namespace {

Times<int64_t> times_of(int64_t F, int64_t I, int64_t W, int64_t c) {
    Times<int64_t> times;
    times.stages = {{F, I, W}};
    times.latency = c;
    return times;
}

int peak_of(const Timeline<int64_t>& t) { return *std::max_element(t.peak_until_w.begin(), t.peak_until_w.end()); }

TEST(Automatic, NeverWorseThanAGeneratorAtTheSameMemory) {
    for (const auto& [p, m] : std::vector<std::pair<int, int>>{{1, 3}, {4, 3}, {4, 8}})
        for (const Times<int64_t>& times : {times_of(10, 10, 10, 0), times_of(10, 13, 6, 2)})
            for (const int v : {1, 2, 3})
                for (const Kind& kind : kinds()) {
                    if (kind.chunks != 0 && kind.chunks != v) continue;
                    Schedule other;
                    try {
                        other = generate(kind.name, {p, v, m});
                    } catch (const UsageError&) {
                        continue;
                    }
                    if (other.placement.replicas > 1) continue;
                    const Timeline<int64_t> its = simulate(other, times);
                    const Schedule found = automatic({p, v, m}, times, {peak_of(its)});
                    const Timeline<int64_t> t = simulate(found, times);
                    EXPECT_LE(t.makespan, its.makespan) << kind.name << ' ' << p << ' ' << m;
                    EXPECT_LE(peak_of(t), peak_of(its)) << kind.name;
                    EXPECT_EQ(problems_of(found), std::vector<std::string>{});
                    EXPECT_TRUE(found.ascending || kind.name == "looped-bfs") << kind.name;
                }
}

// Bubbles of the zero-bubble schedules and of the reordering heuristics of their authors (github.com/sail-sg) with
// equal times of F, I, W of a chunk, which are the unit here, and free messages: bubble of the makespan and of the
// cost, at their peak of live chunks.
TEST(Automatic, AtOrBelowThePublishedBubbles) {
    struct Row {
        const char* name;
        int v, p, m, chunks;
        int64_t bubble, cost_bubble;
    };
    constexpr int64_t kAny = 1'000'000;
    const std::vector<Row> rows = {
        {"zb-h1", 1, 4, 8, 4, 3, 3},
        {"zb-h1", 1, 8, 32, 8, 7, 7},
        {"zb-h2", 1, 4, 8, 7, 3, 0},
        {"zb-h2", 1, 8, 32, 15, 7, 0},
        {"interleaved-zb", 2, 4, 8, 8, 3, 3},
        {"interleaved-zb", 2, 8, 32, 16, 7, 7},
        {"zb-v", 2, 4, 8, 8, 3, 0},
        {"zb-v", 2, 8, 32, 16, 7, 0},
        {"v-half, reordered", 2, 4, 8, 6, 5, kAny},
        {"v-half, reordered", 2, 8, 32, 10, 17, kAny},
        {"v-min, reordered", 2, 4, 8, 4, 11, kAny},
        {"v-min, reordered", 2, 8, 32, 8, 27, kAny},
        {"1f1b-v", 2, 4, 8, 6, 15, kAny},
        {"1f1b-v", 2, 8, 32, 12, 33, kAny},
    };
    for (const Row& row : rows) {
        const Times<int64_t> times = times_of(1, 1, 1, 0);
        const Timeline<int64_t> t = simulate(automatic({row.p, row.v, row.m}, times, {row.chunks}), times);
        EXPECT_LE(peak_of(t), row.chunks) << row.name << ' ' << row.p;
        EXPECT_LE(t.bubble, row.bubble) << row.name << ' ' << row.p;
        EXPECT_LE(t.cost - t.busy[0], row.cost_bubble) << row.name << ' ' << row.p;
    }
}

// The closed form of ZB-H1, in the memory of 1F1B, holds for any times; that of ZB-H2, in twice as much, for equal
// ones.
TEST(Automatic, AtOrBelowTheClosedForms) {
    std::mt19937 random(3);
    const auto any = [&](int64_t from, int64_t to) { return std::uniform_int_distribution<int64_t>(from, to)(random); };
    for (int i = 0; i < 20; ++i) {
        const int p = static_cast<int>(any(2, 5)), m = 2 * p - 1 + static_cast<int>(any(0, 6));
        const int64_t F = any(1, 20), I = any(1, 20), W = any(1, 20), c = any(0, 1);
        EXPECT_LE(simulate(automatic({p, 1, m}, times_of(F, I, W, 0), {p}), times_of(F, I, W, 0)).makespan,
                  m * (F + I + W) + (p - 1) * (F + I - std::min({F, I, W})))
            << F << ' ' << I << ' ' << W;
        const Times<int64_t> equal = times_of(20 + F, 20 + F, 20 + F, c);
        EXPECT_LE(simulate(automatic({p, 1, m}, equal, {2 * p - 1}), equal).makespan,
                  3 * m * (20 + F) + (p - 1) * (20 + F + c));
    }
}

// No order is shorter than the last rank's: it starts after p - 1 forwards and messages, and then works without a
// pause.
TEST(Automatic, ReachesTheLowerBoundWithEnoughMemory) {
    for (const auto& [p, m] : std::vector<std::pair<int, int>>{{4, 8}, {8, 24}, {16, 64}}) {
        const Times<int64_t> times = times_of(11, 12, 8, 1);
        EXPECT_EQ(simulate(automatic({p, 1, m}, times, {2 * p}), times).makespan, (p - 1) * 12 + m * (11 + 12 + 8));
    }
}

// Of sixteen ranks, in the memory of ZB-V.
TEST(Automatic, SixteenRanks) {
    const Times<int64_t> times = times_of(11, 12, 8, 1);
    const Timeline<int64_t> its = simulate(generate("zb-v", {16, 2, 64}), times);
    const Timeline<int64_t> t = simulate(automatic({16, 2, 64}, times, {peak_of(its)}), times);
    EXPECT_LE(t.makespan, its.makespan);
    EXPECT_LE(peak_of(t), peak_of(its));
}

TEST(Automatic, SaysWhatCannotFit) {
    EXPECT_THROW(automatic({4, 2, 8}, times_of(1, 1, 1, 0), {1}), UsageError);
    EXPECT_EQ(peak_of(simulate(automatic({4, 2, 8}, times_of(1, 1, 1, 0), {2}), times_of(1, 1, 1, 0))), 2);
}

}  // namespace
}  // namespace tutti::schedule
