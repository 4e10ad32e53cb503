// The search against the generators at the same memory, and against the published results of the zero-bubble papers'
// scheduler.
#include "tutti/schedule/automatic.h"

#include <gtest/gtest.h>

#include <chrono>

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

// Table 5 of arXiv 2401.10241: bubble rates, of the cost, of its scheduler within the memory of p (ZB-1p) and of 2p
// forwards (ZB-2p), for the times of F, I, W and a message that its appendix lists, here in microseconds. The paper's
// memory: M_B = (34 + 5as/h) sbh until I, then M_W = 32 sbh; their ratio follows from the models' sizes. The numbers
// were entered without the paper at hand and have yet to be compared with it.
TEST(Automatic, AtOrBelowThePublishedBubbles) {
    struct Model {
        int64_t F, I, W, c;
        double after_input;
    };
    const Model small{18522, 18086, 9337, 601, 32 / (34 + 5. * 24 * 1024 / 2304)};    // 1.5B
    const Model middle{29718, 29444, 19927, 527, 32 / (34 + 5. * 32 * 1024 / 4096)};  // 6.2B
    const Model large{11347, 11248, 8132, 377, 32 / (34 + 5. * 40 * 1024 / 5120)};    // 14.6B
    struct Row {
        const Model& model;
        int p, m;
        double zb_1p, zb_2p;
    };
    const std::vector<Row> rows = {
        {small, 8, 24, .1585, .0433},  {small, 8, 64, .0674, .0026},  {middle, 8, 24, .1323, .0029},
        {middle, 8, 32, .1045, .0022}, {large, 16, 48, .1397, .0066}, {large, 16, 64, .1088, .0054},
    };
    const auto rate = [](const Row& row, const MemoryLimit& memory) {
        const Model& x = row.model;
        const Times<int64_t> times = times_of(x.F, x.I, x.W, x.c);
        const Timeline<int64_t> t = simulate(automatic({row.p, 1, row.m}, times, memory), times);
        return 1 - static_cast<double>(t.busy[0]) / static_cast<double>(t.cost);
    };
    constexpr double kRounding = 5e-5;  // four digits are printed
    for (const Row& row : rows) {
        EXPECT_LE(rate(row, {row.p}), row.zb_1p + kRounding) << row.p << ' ' << row.m;
        EXPECT_LE(rate(row, {2 * row.p, row.model.after_input}), row.zb_2p + kRounding) << row.p << ' ' << row.m;
    }
}

// No order is shorter than the last rank's: it starts after p - 1 forwards and messages, and then works without a
// pause.
TEST(Automatic, ReachesTheLowerBoundWithEnoughMemory) {
    for (const auto& [p, m] : std::vector<std::pair<int, int>>{{4, 8}, {8, 24}, {16, 64}}) {
        const Times<int64_t> times = times_of(11347, 11248, 8132, 377);
        EXPECT_EQ(simulate(automatic({p, 1, m}, times, {2 * p}), times).makespan,
                  (p - 1) * (11347 + 377) + m * (11347 + 11248 + 8132));
    }
}

TEST(Automatic, SixteenRanksInSeconds) {
    const auto start = std::chrono::steady_clock::now();
    for (const int v : {1, 2}) automatic({16, v, 64}, times_of(11347, 11248, 8132, 377), {32});
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));  // a sanitizer is ten times slower
}

TEST(Automatic, SaysWhatCannotFit) {
    EXPECT_THROW(automatic({4, 2, 8}, times_of(1, 1, 1, 0), {1}), UsageError);
    EXPECT_EQ(peak_of(simulate(automatic({4, 2, 8}, times_of(1, 1, 1, 0), {2}), times_of(1, 1, 1, 0))), 2);
}

}  // namespace
}  // namespace tutti::schedule
