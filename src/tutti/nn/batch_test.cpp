// What a batch is made of: windows of tokens, and what is refused.
#include "tutti/nn/batch.h"

#include <gtest/gtest.h>

#include "tutti/base/error.h"
#include "tutti/tensor/tensor.h"

namespace tutti::nn {
namespace {

TEST(Batches, AWindowGivesTokensAndWhatFollowsThem) {
    const auto device = make_cpu_device(1);
    const std::vector<int32_t> windows = {1, 2, 3, 7, 8, 9};
    const Batch batch = make_batch(*device, windows, 2, 4);
    EXPECT_EQ(batch.tokens.shape(), (Shape{2, 2}));
    EXPECT_EQ(batch.tokens.to_host<int32_t>(), (std::vector<int32_t>{1, 2, 7, 8}));
    EXPECT_EQ(batch.targets.to_host<int32_t>(), (std::vector<int32_t>{2, 3, 8, 9}));
    EXPECT_EQ(batch.positions.to_host<int32_t>(), (std::vector<int32_t>{0, 1, 0, 1}));
    EXPECT_EQ(batch.row_index.to_host<int64_t>(), (std::vector<int64_t>{8, 9, 10, 11}));
}

// Two windows of 8 with 3 and 7 tokens. Of two ranks in a ring the first has the places 0, 1, 6, 7 of each window.
TEST(Batches, SayWhichRowsArePadding) {
    const auto device = make_cpu_device(1);
    const std::vector<int32_t> ids(16, 1);
    const std::vector<int64_t> lengths = {3, 7};
    const auto padding = [&](const SequencePart& part) {
        const Batch batch =
            make_batch(*device, BatchRows{.tokens = ids, .targets = ids, .lengths = lengths}, 2, 0, part);
        EXPECT_EQ(batch.padded, 6);
        std::vector<std::pair<int64_t, int64_t>> rows;
        for (const TokenRun& run : batch.padding) rows.emplace_back(run.begin, run.tokens);
        return rows;
    };
    using Rows = std::vector<std::pair<int64_t, int64_t>>;
    EXPECT_EQ(padding({}), (Rows{{3, 5}, {15, 1}}));
    EXPECT_EQ(padding({.rank = 0, .ranks = 2}), (Rows{{2, 2}, {7, 1}}));
    EXPECT_EQ(padding({.rank = 1, .ranks = 2}), (Rows{{1, 3}}));
    EXPECT_EQ(padding({.rank = 0, .ranks = 2, .ulysses = 2}), (Rows{{3, 1}}));
    EXPECT_EQ(padding({.rank = 1, .ranks = 2, .ulysses = 2}), (Rows{{0, 4}, {7, 1}}));
}

TEST(Batches, RefuseWhatIsNoNumberOfSequences) {
    const auto device = make_cpu_device(1);
    const std::vector<int32_t> six(6), four(4), none;
    EXPECT_THROW(make_batch(*device, six, 0, 0), Error);
    EXPECT_THROW(make_batch(*device, six, 4, 0), Error);
    EXPECT_THROW(make_batch(*device, six, 6, 0), Error);  // a window of one token has no target
    EXPECT_THROW(make_batch(*device, none, 1, 0), Error);
    const auto rows = [&](std::span<const int32_t> tokens, std::span<const int32_t> targets,
                          std::span<const int32_t> first_key, int64_t sequences) {
        return make_batch(*device, BatchRows{.tokens = tokens, .targets = targets, .first_key = first_key}, sequences,
                          0, SequencePart{});
    };
    EXPECT_NO_THROW(rows(six, six, six, 2));
    EXPECT_NO_THROW(rows(six, six, none, 3));
    EXPECT_THROW(rows(six, six, none, 0), Error);
    EXPECT_THROW(rows(six, six, none, -1), Error);
    EXPECT_THROW(rows(six, six, none, 4), Error);
    EXPECT_THROW(rows(six, four, none, 2), Error);
    EXPECT_THROW(rows(six, six, four, 2), Error);
    EXPECT_THROW(rows(none, none, none, 2), Error);
}

}  // namespace
}  // namespace tutti::nn
