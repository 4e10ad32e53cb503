// data/sampler_test.cpp: sample i is the right window, once per epoch, the same from every thread. The permutation
// behind it: a bijection for every size, uniform over keys, with the exact values that resumed runs rely on.
#include "tutti/data/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/data/testing/token_files.h"

namespace tutti::data {
namespace {

using Ids = std::vector<int32_t>;

// Token t of the file is t, so that a window shows where it comes from.
TokenView counting(const ScratchFolder& folder, uint64_t tokens) {
    std::vector<uint64_t> ids(tokens);
    for (uint64_t t = 0; t < tokens; ++t) ids[t] = t;
    return open(
               [&] {
                   spec::DataSpec data;
                   data.train = {folder.write("count.bin", little_endian(ids, 2))};
                   return data;
               }(),
               65536, 1)
        .train.views[0];
}

Ids sample(const Sampler& sampler, uint64_t i) {
    Ids tokens(to_size(sampler.seq_len() + 1));
    sampler.sample(i, tokens);
    return tokens;
}

TEST(Sampler, WindowsStartEverySeqLenTokens) {
    ScratchFolder folder;
    const auto in_order = Sampler::in_order(counting(folder, 14), 4);  // 13 targets: 3 whole windows
    EXPECT_EQ(in_order.samples_per_epoch(), 3);
    EXPECT_EQ(sample(in_order, 0), (Ids{0, 1, 2, 3, 4}));
    EXPECT_EQ(sample(in_order, 1), (Ids{4, 5, 6, 7, 8}));
    EXPECT_EQ(sample(in_order, 2), (Ids{8, 9, 10, 11, 12}));
    EXPECT_EQ(sample(in_order, 3), (Ids{0, 1, 2, 3, 4}));
    EXPECT_EQ(Sampler::in_order(counting(folder, 13), 4).samples_per_epoch(), 3);
    EXPECT_EQ(Sampler::in_order(counting(folder, 12), 4).samples_per_epoch(), 2);
    EXPECT_EQ(Sampler::in_order(counting(folder, 5), 4).samples_per_epoch(), 1);
}

TEST(Sampler, EachEpochVisitsEachWindowOnceInItsOwnOrder) {
    ScratchFolder folder;
    const Sampler sampler(counting(folder, 1001), 10, 1234);
    const auto n = static_cast<uint64_t>(sampler.samples_per_epoch());
    ASSERT_EQ(n, 100u);
    std::vector<std::vector<int64_t>> epochs;
    for (uint64_t epoch = 0; epoch < 4; ++epoch) {
        std::vector<int64_t> windows;
        for (uint64_t i = 0; i < n; ++i) {
            const auto tokens = sample(sampler, epoch * n + i);
            const int64_t window = tokens.front() / 10;
            EXPECT_EQ(window, sampler.place(epoch * n + i).window);
            for (size_t t = 0; t < tokens.size(); ++t) ASSERT_EQ(tokens[t], window * 10 + static_cast<int64_t>(t));
            windows.push_back(window);
        }
        for (const auto& earlier : epochs) EXPECT_NE(windows, earlier);
        epochs.push_back(windows);
        std::sort(windows.begin(), windows.end());
        for (uint64_t w = 0; w < n; ++w) EXPECT_EQ(windows[w], static_cast<int64_t>(w));
    }
}

// From the same independent program as the values in Permute.HasTheseValues: seed 1234, 1000 windows.
TEST(Sampler, OrderIsPinned) {
    ScratchFolder folder;
    const Sampler sampler(counting(folder, 2001), 2, 1234);
    ASSERT_EQ(sampler.samples_per_epoch(), 1000);
    const std::vector<std::pair<uint64_t, int64_t>> pinned = {{0, 566},    {1, 92},     {2, 103},        {999, 658},
                                                              {1000, 365}, {1001, 200}, {5'000'007, 856}};
    for (auto [i, window] : pinned) EXPECT_EQ(sampler.place(i).window, window) << "sample " << i;
}

TEST(Sampler, DependsOnTheSeedOnly) {
    ScratchFolder folder;
    const auto view = counting(folder, 1001);
    const Sampler one(view, 10, 1), again(view, 10, 1), other(view, 10, 2);
    int same = 0;
    for (uint64_t i = 0; i < 100; ++i) {
        EXPECT_EQ(one.place(i).window, again.place(i).window);
        same += one.place(i).window == other.place(i).window;
    }
    EXPECT_LT(same, 10);  // one is expected by chance
}

TEST(Sampler, ThreadsSeeTheSameSamples) {
    ScratchFolder folder;
    const Sampler sampler(counting(folder, 4001), 8, 7);
    std::vector<Ids> alone, together(1000);
    for (uint64_t i = 0; i < 1000; ++i) alone.push_back(sample(sampler, i));
    std::vector<std::thread> threads;
    for (uint64_t first = 0; first < 4; ++first)
        threads.emplace_back([&, first] {
            for (uint64_t i = first; i < 1000; i += 4) together[i] = sample(sampler, i);
        });
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(together, alone);
}

TEST(Sampler, Refusals) {
    ScratchFolder folder;
    const auto view = counting(folder, 10);
    EXPECT_EQ(missing("needs 11 tokens, got 10", message_of<DataError>([&] { Sampler(view, 10, 1); })), "");
    EXPECT_EQ(missing("train.seq_len must be positive", message_of<UsageError>([&] { Sampler(view, 0, 1); })), "");
    Ids wrong(9);
    EXPECT_EQ(missing("seq_len + 1 = 10 tokens, got room for 9",
                      message_of<Error>([&] { Sampler(view, 9, 1).sample(0, wrong); })),
              "");
}

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
            std::vector<bool> seen(to_size(n), false);
            for (int64_t element : order(key, n)) {
                ASSERT_GE(element, 0);
                ASSERT_LT(element, n);
                ASSERT_FALSE(seen[to_size(element)]) << element << " came twice, n = " << n;
                seen[to_size(element)] = true;
            }
        }
    }
}

// Values from an independent program (Python integers, written from the description in sampler.h). If these change,
// a resumed run reads other samples than the run that it continues.
TEST(Permute, HasTheseValues) {
    constexpr RandomKey kKey = 0x0123456789abcdef;
    EXPECT_EQ(order(kKey, 5), (std::vector<int64_t>{1, 4, 0, 3, 2}));
    const std::vector<int64_t> thousand = {408, 949, 269, 28, 631, 207, 358, 751};
    const std::vector<int64_t> trillion = {32867877395,  958162636870, 167124771582, 73255993027,
                                           563898227784, 227435852895, 359960509099, 195963452106};
    for (int64_t i = 0; i < 8; ++i) {
        EXPECT_EQ(permute(kKey, 1000, i), thousand[to_size(i)]);
        EXPECT_EQ(permute(kKey, 1'000'000'000'000, i), trillion[to_size(i)]);
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
        std::vector<std::vector<int64_t>> counts(to_size(n), std::vector<int64_t>(to_size(n)));
        for (uint64_t k = 0; k < kKeys; ++k)
            for (int64_t i = 0; i < n; ++i) ++counts[to_size(i)][to_size(permute(random_key(99, "test", k), n, i))];
        const double expected = static_cast<double>(kKeys) / static_cast<double>(n);
        for (int64_t i = 0; i < n; ++i) {
            double chi_square = 0;
            for (int64_t count : counts[to_size(i)])
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
