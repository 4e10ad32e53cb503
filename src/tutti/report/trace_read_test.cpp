// Times that the report derives from a trace, against spans made by hand; damaged files.
#include "tutti/report/trace_read.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tutti/base/error.h"
#include "tutti/base/testing/scratch.h"

namespace tutti::report {
namespace {

TracedSpan made(const char* activity, double begin, double end) {
    return {.name = activity, .activity = activity, .step = 1, .begin_us = begin, .end_us = end};
}

TEST(TraceTimes, AreThoseOfTheDrawing) {
    //  step     0 -------------------------------------- 1000
    //  compute     100 ------------ 500   600 --- 700
    //  wait               300-400                    800-900
    //  communication  200 ------------------ 650     800-900   950 ---- 1200
    const TracedRank rank{
        .rank = 2,
        .spans = {made("step", 0, 1000), made("compute", 100, 500), made("compute", 600, 700), made("data", 0, 50),
                  made("wait", 300, 400), made("begin", 350, 400), made("wait", 800, 900),
                  made("communication", 200, 650), made("communication", 250, 600), made("communication", 800, 900),
                  made("communication", 950, 1200)}};
    const RankTimes t = times_of({rank}).at(0);
    EXPECT_EQ(t.rank, 2);
    EXPECT_DOUBLE_EQ(t.step_ms, 1.0);
    EXPECT_DOUBLE_EQ(t.compute_ms, 0.4);
    EXPECT_DOUBLE_EQ(t.data_ms, 0.05);
    EXPECT_DOUBLE_EQ(t.wait_ms, 0.2);
    EXPECT_DOUBLE_EQ(t.communication_ms, 0.6);
    EXPECT_DOUBLE_EQ(t.hidden_ms, 0.25);  // 200-300, 400-500, 600-650
}

// The host starts work in 100 to 200 and waits from 200 on; the GPU computes from 150 to 900.
TEST(TraceTimes, OfAGpuAreItsOwn) {
    const TracedRank rank{.rank = 0,
                          .spans = {made("step", 0, 1000), made("compute", 100, 200), made("gpu", 150, 600),
                                    made("gpu", 600, 900), made("wait", 200, 900), made("communication", 500, 950)}};
    const RankTimes t = times_of({rank}).at(0);
    EXPECT_DOUBLE_EQ(t.compute_ms, 0.75);
    EXPECT_DOUBLE_EQ(t.wait_ms, 0.7);
    EXPECT_DOUBLE_EQ(t.hidden_ms, 0.4);
}

TEST(TraceRead, ADamagedFileIsNamed) {
    const ScratchFolder folder;
    const auto error = [&](const std::string& text) -> std::string {
        std::ofstream(folder.path("trace.json")) << text;
        try {
            read_trace(folder.path("trace.json"));
        } catch (const DataError& e) {
            return e.what();
        }
        return "";
    };
    EXPECT_NE(error("{\"traceEvents\":[").find("trace.json: damaged at byte 16"), std::string::npos)
        << error("{\"traceEvents\":[");
    EXPECT_NE(error("{}").find("trace.json: not a trace of this program"), std::string::npos);
    EXPECT_NE(error("{\"traceEvents\":[{\"ph\":\"X\"}]}").find("\"pid\" is missing"), std::string::npos);
}

}  // namespace
}  // namespace tutti::report
