// The time between two calls counts in full up to a quarter of the limit, and as a quarter beyond.
#include "tutti/base/awake_time.h"

#include <gtest/gtest.h>

namespace tutti {
namespace {

TEST(AwakeTime, LeavesOutTheTimeOfAStop) {
    using std::chrono::seconds;
    const AwakeTime::Clock::time_point begin{};
    AwakeTime time(40, begin);
    EXPECT_EQ(time.passed(begin), 0);
    EXPECT_EQ(time.passed(begin + seconds(9)), 9);
    EXPECT_EQ(time.passed(begin + seconds(19)), 19);
    EXPECT_EQ(time.passed(begin + seconds(10'000)), 29);
    EXPECT_EQ(time.passed(begin + seconds(10'010)), 39);
}

}  // namespace
}  // namespace tutti
