#include "tutti/report/time_spent.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace tutti::report {
namespace {

TEST(TimeSpent, ReadsBackWhatItWrites) {
    const TimeSpent spent{.trained = 90.25,
                          .lost = 3.5,
                          .saving = 1.125,
                          .restarting = 4,
                          .other = 1.125,
                          .lost_steps = 7,
                          .deaths = 2,
                          .stops = 1};
    EXPECT_EQ(time_spent_from(Json::parse(to_json(spent).dump())), spent);
    EXPECT_DOUBLE_EQ(spent.total(), 100);
    EXPECT_DOUBLE_EQ(*spent.goodput(), 0.9025);
    EXPECT_FALSE(TimeSpent{}.goodput());
    Json without = to_json(spent);
    without.erase("lost");
    EXPECT_THROW(time_spent_from(without), DataError);
    EXPECT_THROW(time_spent_from(Json("text")), DataError);
}

// 16,384 devices at 50,700 device-hours a failure: M = 3.09 h, D + R = 90 s.
TEST(ExpectedGoodput, IsTheFormulasByHand) {
    GoodputTerms disk{.between_failures = 3.09 * 3600, .restart = 90, .disk_every = 19 * 60, .disk_stall = 60};
    EXPECT_NEAR(expected_goodput(disk), 0.891, 5e-4);
    GoodputTerms copies = disk;
    copies.disk_every = 3600;
    copies.memory_every = 30;
    copies.disk_share = 0.05;
    EXPECT_NEAR(expected_goodput(copies), 0.966, 5e-4);
    GoodputTerms late = copies;
    late.memory_lag = 309;  // a hundredth of 3.09 h is 111 s
    EXPECT_NEAR(expected_goodput(copies) - expected_goodput(late), 0.95 * (1 - 60.0 / 3600) / 36, 1e-6);
    late.disk_share = 1;  // as without copies
    EXPECT_NEAR(expected_goodput(late), (1 - 60.0 / 3600) * (1 - (90 + 1800) / (3.09 * 3600)), 1e-9);
    copies.memory_stall = 0.3;  // one in a hundred seconds
    EXPECT_NEAR(expected_goodput(copies), (1 - 0.01 - 60.0 / 3600) * 0.966 / (1 - 60.0 / 3600), 5e-4);
    EXPECT_EQ(expected_goodput({.between_failures = 10, .restart = 90}), 0);
    EXPECT_EQ(expected_goodput({.between_failures = std::numeric_limits<double>::infinity(), .restart = 90}), 1);
}

// A run with failures at random times, step by step: with M far above the interval the first order is close.
TEST(ExpectedGoodput, IsWhatASimulationGives) {
    std::mt19937_64 random(20261127);
    for (int draw = 0; draw < 6; ++draw) {
        const auto between = [&](double low, double high) { return std::uniform_real_distribution(low, high)(random); };
        const GoodputTerms t{.between_failures = between(20000, 40000),
                             .restart = between(10, 200),
                             .disk_every = between(300, 900),
                             .disk_stall = between(0, 40)};
        std::exponential_distribution<double> wait(1 / t.between_failures);
        double now = 0, kept = 0, failure = wait(random);
        const double training = t.disk_every - t.disk_stall;  // in an interval that ends with a save
        while (now < 3e7) {
            if (now + t.disk_every <= failure) {
                now += t.disk_every;
                kept += training;
            } else {
                now = failure + t.restart;  // what was trained since the last save is lost
                failure = now + wait(random);
            }
        }
        EXPECT_NEAR(kept / now, expected_goodput(t), 0.004) << draw;
    }
}

}  // namespace
}  // namespace tutti::report
