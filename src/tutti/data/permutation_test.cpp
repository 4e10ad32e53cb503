// data/permutation_test.cpp: a bijection for every size, uniform over keys, and the exact values that resumed runs rely
// on.
#include "tutti/data/permutation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <set>
#include <vector>

#include "tutti/base/error.h"

namespace tutti::data {
namespace {

std::vector<int64_t> order(RandomKey key, int64_t n) {
    std::vector<int64_t> elements;
    for (int64_t i = 0; i < n; ++i) elements.push_back(permute(key, n, i));
    return elements;
}

TEST(Permute, IsABijection) {
    std::vector<int64_t> sizes = {97, 101, 257, 997, 10007, 65537, 31102, 100000};
    for (int64_t n = 1; n <= 70; ++n) sizes.push_back(n);
    for (int64_t k = 7; k <= 17; ++k)
        for (int64_t d : {-1, 0, 1}) sizes.push_back((int64_t{1} << k) + d);
    for (int64_t n : sizes) {
        for (RandomKey key : {RandomKey{0}, random_key(1234, "test")}) {
            std::vector<bool> seen(static_cast<size_t>(n), false);
            for (int64_t element : order(key, n)) {
                ASSERT_GE(element, 0);
                ASSERT_LT(element, n);
                ASSERT_FALSE(seen[static_cast<size_t>(element)]) << element << " came twice, n = " << n;
                seen[static_cast<size_t>(element)] = true;
            }
        }
    }
}

// Values from an independent program (Python integers, written from the description in permutation.h). If these change,
// a resumed run reads other samples than the run that it continues.
TEST(Permute, HasTheseValues) {
    constexpr RandomKey kKey = 0x0123456789abcdef;
    EXPECT_EQ(order(kKey, 5), (std::vector<int64_t>{1, 4, 0, 3, 2}));
    const std::vector<int64_t> thousand = {408, 949, 269, 28, 631, 207, 358, 751};
    const std::vector<int64_t> trillion = {32867877395,  958162636870, 167124771582, 73255993027,
                                           563898227784, 227435852895, 359960509099, 195963452106};
    for (int64_t i = 0; i < 8; ++i) {
        EXPECT_EQ(permute(kKey, 1000, i), thousand[static_cast<size_t>(i)]);
        EXPECT_EQ(permute(kKey, 1'000'000'000'000, i), trillion[static_cast<size_t>(i)]);
    }
}

TEST(Permute, ReachesAllOrdersOfThree) {
    std::set<std::vector<int64_t>> orders;
    for (uint64_t k = 0; k < 200; ++k) orders.insert(order(random_key(k, "test"), 3));
    EXPECT_EQ(orders.size(), 6u);
}

// Over K keys, element i lands on each of n places with probability 1/n. The chi-square statistic has n - 1 degrees of
// freedom: mean n - 1, variance 2 (n - 1). Bound: mean + 5 sigma, for every i; keys are fixed, so it cannot flake.
TEST(Permute, PlacesAreUniformOverKeys) {
    constexpr int64_t kKeys = 20000;
    for (int64_t n : {2, 3, 7, 16, 37}) {
        std::vector<std::vector<int64_t>> counts(static_cast<size_t>(n), std::vector<int64_t>(static_cast<size_t>(n)));
        for (uint64_t k = 0; k < kKeys; ++k)
            for (int64_t i = 0; i < n; ++i)
                ++counts[static_cast<size_t>(i)][static_cast<size_t>(permute(random_key(99, "test", k), n, i))];
        const double expected = static_cast<double>(kKeys) / static_cast<double>(n);
        for (int64_t i = 0; i < n; ++i) {
            double chi_square = 0;
            for (int64_t count : counts[static_cast<size_t>(i)])
                chi_square +=
                    (static_cast<double>(count) - expected) * (static_cast<double>(count) - expected) / expected;
            const double freedom = static_cast<double>(n - 1);
            EXPECT_LT(chi_square, freedom + 5 * std::sqrt(2 * freedom)) << "n = " << n << ", i = " << i;
        }
    }
}

// Within one order of many elements: neighbours do not stay neighbours. Of n - 1 successive pairs a random order keeps
// about 2 at distance 1 (Poisson); a weak network that shifts blocks keeps thousands.
TEST(Permute, BreaksUpNeighbours) {
    const auto elements = order(random_key(5, "test"), 50000);
    int close = 0;
    for (size_t i = 1; i < elements.size(); ++i) close += std::abs(elements[i] - elements[i - 1]) == 1;
    EXPECT_LT(close, 12);
}

TEST(Permute, RefusesWhatIsOutside) {
    EXPECT_THROW(permute(1, 0, 0), Error);
    EXPECT_THROW(permute(1, 5, 5), Error);
    EXPECT_THROW(permute(1, 5, -1), Error);
    const int64_t large = int64_t{1} << 62;
    EXPECT_LT(permute(1, large, large - 1), large);
    EXPECT_THROW(permute(1, large + 1, 0), Error);
}

}  // namespace
}  // namespace tutti::data
