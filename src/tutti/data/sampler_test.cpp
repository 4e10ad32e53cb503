// data/sampler_test.cpp: sample i is the window that it must be, once per epoch, the same from every thread.
#include "tutti/data/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <utility>

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
    Ids tokens(static_cast<size_t>(sampler.seq_len() + 1));
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

// From the same independent program as the values in permutation_test.cpp: seed 1234, 1000 windows.
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

}  // namespace
}  // namespace tutti::data
