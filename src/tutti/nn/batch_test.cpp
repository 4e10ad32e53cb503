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
