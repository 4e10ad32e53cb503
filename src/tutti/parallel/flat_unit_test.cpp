#include "tutti/parallel/flat_unit.h"

#include <gtest/gtest.h>

#include "tutti/base/to_size.h"

namespace tutti::parallel {
namespace {

using Gaps = std::vector<std::pair<int64_t, int64_t>>;

Gaps gaps_of(const FlatLayout& layout) {
    Gaps gaps;
    for (const FlatLayout::Gap& gap : layout.gaps) gaps.emplace_back(gap.begin, gap.size);
    return gaps;
}

TEST(FlatLayout, ParametersBeginAtMultiplesOfEight) {
    const FlatLayout layout = flat_layout({3, 16, 5, 1}, 1);
    EXPECT_EQ(layout.offsets, (std::vector<int64_t>{0, 8, 24, 32}));
    EXPECT_EQ(gaps_of(layout), (Gaps{{3, 5}, {29, 3}}));
    EXPECT_EQ(layout.padded, 33);
    EXPECT_EQ(layout.shard_size, 33);
}

TEST(FlatLayout, ShardsAreWholeBlocksOfSums) {
    const FlatLayout layout = flat_layout({512, 8}, 2);
    EXPECT_EQ(layout.offsets, (std::vector<int64_t>{0, 512}));
    EXPECT_EQ(gaps_of(layout), (Gaps{{520, 504}}));
    EXPECT_EQ(layout.padded, 1024);
    EXPECT_EQ(layout.shard_size, 512);
    EXPECT_TRUE(flat_layout({512}, 2).gaps.empty());
}

// Every value of the buffer is of one parameter or of one gap.
TEST(FlatLayout, PartsAndGapsFillTheBuffer) {
    for (const int64_t shards : {1, 2, 3, 8})
        for (int64_t first = 1; first < 20; ++first) {
            const std::vector<int64_t> sizes = {first, 7, 2 * first, 256};
            const FlatLayout layout = flat_layout(sizes, shards);
            std::vector<int> covered(to_size(layout.padded), 0);
            for (size_t i = 0; i < sizes.size(); ++i)
                for (int64_t v = 0; v < sizes[i]; ++v) ++covered[to_size(layout.offsets[i] + v)];
            for (const auto& [begin, size] : gaps_of(layout))
                for (int64_t v = 0; v < size; ++v) ++covered[to_size(begin + v)];
            EXPECT_EQ(covered, std::vector<int>(covered.size(), 1)) << shards << " shards, " << first;
            EXPECT_EQ(layout.shard_size * shards, layout.padded);
        }
}

}  // namespace
}  // namespace tutti::parallel
