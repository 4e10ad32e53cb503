// Exact sums against cases with known results, any order, any split; the largest and smallest doubles.
#include "tutti/base/exact_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tutti/base/philox.h"

namespace tutti {
namespace {

double sum(const std::vector<double>& terms) {
    ExactSum s;
    for (double t : terms) s.add(t);
    return s.value();
}

TEST(ExactSum, KeepsWhatRoundingWouldLose) {
    EXPECT_EQ(sum({}), 0);
    EXPECT_EQ(sum({1e300, 1, -1e300}), 1);
    EXPECT_EQ(sum({1, 1e-300, -1}), 1e-300);
    EXPECT_EQ(sum({-1, 0x1p-60}), -1 + 0x1p-60);
    EXPECT_EQ(sum({-3.5, 1.25}), -2.25);
    EXPECT_EQ(sum({5e-324, 5e-324}), 1e-323);
    EXPECT_EQ(sum({1.7976931348623157e308, -1.7976931348623157e308, 2}), 2);
    EXPECT_EQ(sum(std::vector<double>(1000, 0.1)),
              100);  // 0.1 is above a tenth by 5.6e-18: the exact sum rounds to 100
}

TEST(ExactSum, SaysWhenATermIsNotFinite) {
    EXPECT_TRUE(std::isnan(sum({1, INFINITY, 2})));
    EXPECT_TRUE(std::isnan(sum({INFINITY, -INFINITY})));
    EXPECT_TRUE(std::isnan(sum({NAN})));
}

TEST(ExactSum, DoesNotDependOnOrderOrSplit) {
    std::vector<double> terms;
    for (uint64_t i = 0; i < 5000; ++i)
        terms.push_back(std::ldexp(normal(random_key(3, "terms"), i), static_cast<int>(i % 200) - 100));
    const double whole = sum(terms);
    long double plain = 0;
    for (double t : terms) plain += t;
    EXPECT_NEAR(whole, static_cast<double>(plain), 1e-15 * std::abs(whole));
    std::sort(terms.begin(), terms.end());
    EXPECT_EQ(sum(terms), whole);
    for (size_t parts : {2, 3, 7}) {
        ExactSum::Words words{};
        for (size_t p = 0; p < parts; ++p) {
            ExactSum part;
            for (size_t i = p; i < terms.size(); i += parts) part.add(terms[i]);
            const ExactSum::Words& other = part.words();
            for (size_t k = 0; k < words.size(); ++k) words[k] += other[k];
        }
        EXPECT_EQ(ExactSum::of(words).value(), whole) << parts;
    }
}

}  // namespace
}  // namespace tutti
