// The change from one unit to the next, signs, NaN and infinity.
#include "tutti/base/units.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tutti {
namespace {

TEST(Units, BytesUseBinaryUnits) {
    EXPECT_EQ(format_bytes(0), "0 B");
    EXPECT_EQ(format_bytes(1023), "1023 B");
    EXPECT_EQ(format_bytes(1023.9), "1023 B");
    EXPECT_EQ(format_bytes(1024), "1.00 KiB");
    EXPECT_EQ(format_bytes(1536), "1.50 KiB");
    EXPECT_EQ(format_bytes(497'759'232), "474.7 MiB");  // gpt2-124m in f32: 124439808 * 4 / 2^20 = 474.70
    EXPECT_EQ(format_bytes(80ll << 30), "80.0 GiB");
    EXPECT_EQ(format_bytes(-2048), "-2.00 KiB");
    EXPECT_EQ(format_bytes(std::numeric_limits<int64_t>::max()), "8.00 EiB");
}

TEST(Units, CountsUseTheFieldsLetters) {
    EXPECT_EQ(format_count(0), "0");
    EXPECT_EQ(format_count(512), "512");
    EXPECT_EQ(format_count(3.14159), "3.14");
    EXPECT_EQ(format_count(8192), "8.19 k");
    EXPECT_EQ(format_count(124'439'808), "124.4 M");
    EXPECT_EQ(format_count(8'030'261'248), "8.03 B");
    EXPECT_EQ(format_count(15e12), "15.0 T");
    EXPECT_EQ(format_count(15e15), "15000.0 T");  // no letter beyond
}

// Otherwise they may have 60 digits, which would run into the next column.
TEST(Units, WhatIsBeyondAllUnitsHasAnExponent) {
    EXPECT_EQ(format_count(1.5e30), "1.5e18 T");
    EXPECT_EQ(format_flops(1e40), "1.0e16 YFLOP");
    EXPECT_EQ(format_time(99'999), "99999.0 s");
    EXPECT_EQ(format_time(149'999), "1.5e5 s");
    EXPECT_EQ(format_time(3.2e58), "3.2e58 s");
    EXPECT_EQ(format_time(1e200), "1.0e200 s");
    EXPECT_EQ(format_fixed(-2e20, 3), "-2.0e20");
    EXPECT_EQ(format_percent(1e20), "1.0e22 %");
}

// 999.97 k would be shown as "1000.0 k".
TEST(Units, RoundingReachesTheNextUnit) {
    EXPECT_EQ(format_count(999'940), "999.9 k");
    EXPECT_EQ(format_count(999'970), "1.00 M");
    EXPECT_EQ(format_count(9'994), "9.99 k");
    EXPECT_EQ(format_count(9'996), "10.0 k");
    EXPECT_EQ(format_bytes(1'048'575), "1.00 MiB");
}

TEST(Units, FlopsAndRates) {
    EXPECT_EQ(format_flops(798'099'456), "798.1 MFLOP");
    EXPECT_EQ(format_flops(1.0247e15), "1.02 PFLOP");
    EXPECT_EQ(format_flop_rate(989e12), "989.0 TFLOP/s");
    EXPECT_EQ(format_rate(12'345, "tokens"), "12.3 k tokens/s");
    EXPECT_EQ(format_rate(7.25, "steps"), "7.25 steps/s");
}

TEST(Units, Durations) {
    EXPECT_EQ(format_duration(0), "0 s");
    EXPECT_EQ(format_duration(350e-6), "350 us");
    EXPECT_EQ(format_duration(1.5e-3), "1.50 ms");
    EXPECT_EQ(format_duration(0.0412), "41.2 ms");
    EXPECT_EQ(format_duration(7.46), "7.5 s");
    EXPECT_EQ(format_duration(59.94), "59.9 s");
    EXPECT_EQ(format_duration(59.96), "1m 00s");
    EXPECT_EQ(format_duration(125), "2m 05s");
    EXPECT_EQ(format_duration(3599.4), "59m 59s");
    EXPECT_EQ(format_duration(3599.6), "1h 00m");
    EXPECT_EQ(format_duration(3720), "1h 02m");
    EXPECT_EQ(format_duration(86'399), "1d 00h");
    EXPECT_EQ(format_duration(3 * 86'400 + 4 * 3'600), "3d 04h");
    EXPECT_EQ(format_duration(-90), "-1m 30s");
}

TEST(Units, PercentAndDifference) {
    EXPECT_EQ(format_percent(0.372), "37.2 %");
    EXPECT_EQ(format_difference(0.0123), "+1.2 %");
    EXPECT_EQ(format_difference(-0.0123), "-1.2 %");
    EXPECT_EQ(format_difference(-0.0001), "+0.0 %");
}

TEST(Units, CountedNouns) {
    EXPECT_EQ(counted(0, "rank"), "0 ranks");
    EXPECT_EQ(counted(1, "rank"), "1 rank");
    EXPECT_EQ(counted(2, "more block"), "2 more blocks");
    EXPECT_EQ(counted(1, "microbatch"), "1 microbatch");
    EXPECT_EQ(counted(2, "microbatch"), "2 microbatches");
}

TEST(Units, WhatIsNoNumberIsAQuestionMark) {
    const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
    EXPECT_EQ(format_count(nan), "?");
    EXPECT_EQ(format_flops(infinity), "?");
    EXPECT_EQ(format_duration(infinity), "?");
    EXPECT_EQ(format_percent(nan), "?");
    EXPECT_EQ(format_difference(-infinity), "?");
}

TEST(Units, TimesOfMeasurementsAndFixedDecimals) {
    EXPECT_EQ(format_time(41.26e-6), "41.3 us");
    EXPECT_EQ(format_time(8.314e-3), "8.31 ms");
    EXPECT_EQ(format_time(0.99996e-3), "1.00 ms");
    EXPECT_EQ(format_time(12), "12.0 s");
    EXPECT_EQ(format_time(std::numeric_limits<double>::quiet_NaN()), "-");
    EXPECT_EQ(format_fixed(2.345, 1), "2.3");
    EXPECT_EQ(format_fixed(std::numeric_limits<double>::infinity(), 1), "-");
}

TEST(Units, LinesBreakAtBlanks) {
    EXPECT_EQ(lines_of("a bb ccc", 4), (std::vector<std::string>{"a bb", "ccc"}));
    EXPECT_EQ(lines_of("ä longer b", 3), (std::vector<std::string>{"ä", "longer", "b"}));
    EXPECT_EQ(lines_of("", 4), std::vector<std::string>{""});
    EXPECT_EQ(wrapped(std::string(60, 'a') + ' ' + std::string(40, 'b'), 2),
              std::string(60, 'a') + "\n  " + std::string(40, 'b'));
    EXPECT_EQ(first_columns("äöü", 2), "äö");
    EXPECT_EQ(first_columns("ab", 3), "ab");
}

}  // namespace
}  // namespace tutti
