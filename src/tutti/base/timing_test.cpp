// How long calls take: how many runs, in which order, how short ones are put together.
#include "tutti/base/timing.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <thread>

namespace tutti {
namespace {

TEST(Timing, CountsRunsAndOrdersThem) {
    int calls = 0;
    const Timing t = time_calls({.seconds = 0, .min_runs = 4, .max_runs = 9}, [&] {
        ++calls;
        std::this_thread::sleep_for(std::chrono::milliseconds(calls == 1 ? 20 : 3));
    });
    EXPECT_EQ(t.runs, 4);
    EXPECT_EQ(calls, 5);  // one to warm up
    EXPECT_GE(t.min, 3e-3);
    EXPECT_LE(t.min, t.median);
    EXPECT_LE(t.median, t.max);
}

TEST(Timing, ShortCallsAreTimedTogether) {
    int64_t calls = 0;
    const Timing t = time_calls({.seconds = 0, .min_runs = 3, .max_runs = 3}, [&] { ++calls; });
    EXPECT_EQ(t.runs, 3);
    EXPECT_GT(calls, 1000);  // 2 ms hold many of them
    EXPECT_LT(t.median, 1e-3);
}

}  // namespace
}  // namespace tutti
