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
    for (const auto& [p, m] : std::vector<std::pair<int, int>>{{1, 3}, {2, 5}, {4, 3}, {4, 8}, {5, 12}})
        for (const Times<int64_t>& times : {times_of(10, 10, 10, 0), times_of(10, 13, 6, 2), times_of(7, 9, 12, 5)})
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
                    const Schedule found = automatic({p, v, m}, times, peak_of(its));
                    const Timeline<int64_t> t = simulate(found, times);
                    EXPECT_LE(t.makespan, its.makespan) << kind.name << ' ' << p << ' ' << m;
                    EXPECT_LE(peak_of(t), peak_of(its)) << kind.name;
                    EXPECT_EQ(problems_of(found), std::vector<std::string>{});
                }
}

// Table 5 of arXiv 2401.10241: bubble rates (of the cost) of its scheduler within the memory of p (ZB-1p) and of 2p
// forwards (ZB-2p), for the times of F, I, W and a message that its appendix lists, here in microseconds.
TEST(Automatic, AtOrBelowThePublishedBubbles) {
    struct Row {
        int p, m;
        int64_t F, I, W, c;
        double zb_1p, zb_2p;
    };
    const std::vector<Row> rows = {
        {8, 24, 18522, 18086, 9337, 601, .1585, .0433},   {8, 32, 18522, 18086, 9337, 601, .1242, .0039},
        {8, 64, 18522, 18086, 9337, 601, .0674, .0026},   {8, 24, 29718, 29444, 19927, 527, .1323, .0029},
        {8, 32, 29718, 29444, 19927, 527, .1045, .0022},  {8, 64, 29718, 29444, 19927, 527, .0554, .0010},
        {16, 48, 11347, 11248, 8132, 377, .1397, .0066},  {16, 64, 11347, 11248, 8132, 377, .1088, .0054},
        {16, 128, 11347, 11248, 8132, 377, .0576, .0028},
    };
    for (const Row& row : rows)
        for (const bool twice : {false, true}) {
            const Times<int64_t> times = times_of(row.F, row.I, row.W, row.c);
            const Timeline<int64_t> t = simulate(automatic({row.p, 1, row.m}, times, (twice ? 2 : 1) * row.p), times);
            const double rate = 1 - static_cast<double>(t.busy[0]) / static_cast<double>(t.cost);
            EXPECT_LE(rate, (twice ? row.zb_2p : row.zb_1p) + 5e-5)
                << row.p << ' ' << row.m << (twice ? " 2p" : " 1p") << " makespan rate "
                << double(t.bubble) / double(t.makespan);
        }
}

TEST(Automatic, SixteenRanksInSeconds) {
    const auto start = std::chrono::steady_clock::now();
    for (const int v : {1, 2}) automatic({16, v, 64}, times_of(11347, 11248, 8132, 377), 32);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));  // a sanitizer is ten times slower
}

TEST(Automatic, SaysWhatCannotFit) {
    EXPECT_THROW(automatic({4, 2, 8}, times_of(1, 1, 1, 0), 1), UsageError);
    EXPECT_EQ(peak_of(simulate(automatic({4, 2, 8}, times_of(1, 1, 1, 0), 2), times_of(1, 1, 1, 0))), 2);
}

}  // namespace
}  // namespace tutti::schedule
