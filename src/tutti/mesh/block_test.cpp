// Ranges cut into blocks, against a count of every element; when blocks tile a tensor and when not.
#include "tutti/mesh/block.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tutti/base/to_size.h"

namespace tutti::mesh {
namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// The positions of a block's elements in the flattened tensor, by walking over all elements of the tensor.
std::vector<int64_t> elements_of(const Shape& shape, const Block& block) {
    std::vector<int64_t> elements;
    for (int64_t e = 0; e < shape.numel(); ++e) {
        bool inside = true;
        int64_t rest = e;
        for (int i = shape.rank() - 1; i >= 0; rest /= shape[i], --i) {
            const int64_t index = rest % shape[i] - block.offset[i];
            inside = inside && index >= 0 && index < block.sizes[i];
        }
        if (inside) elements.push_back(e);
    }
    return elements;
}

TEST(Block, EveryRangeOfEveryShapeIsFewBlocksInTheOrderOfItsElements) {
    for (const Shape& shape : {Shape{7}, Shape{1}, Shape{}, Shape{3, 4}, Shape{4, 1, 5}, Shape{1, 6}, Shape{3, 2, 4},
                               Shape{2, 3, 1, 4}, Shape{2, 2, 2, 2, 2}})
        for (int64_t begin = 0; begin <= shape.numel(); ++begin)
            for (int64_t end = begin; end <= shape.numel(); ++end) {
                std::vector<int64_t> expected, found;
                for (int64_t e = begin; e < end; ++e) expected.push_back(e);
                const auto blocks = blocks_of_range(shape, begin, end);
                for (const Block& block : blocks) {
                    const auto elements = elements_of(shape, block);
                    ASSERT_FALSE(elements.empty());
                    ASSERT_EQ(flat_begin(shape, block), elements.front());
                    ASSERT_EQ(flat_end(shape, block), elements.back() + 1);
                    found.insert(found.end(), elements.begin(), elements.end());
                }
                ASSERT_EQ(found, expected) << shape << " [" << begin << ", " << end << ")";
                ASSERT_LE(static_cast<int>(blocks.size()), std::max(1, 2 * shape.rank() - 1)) << shape;
            }
}

// Three sections of a padded part: every range of its memory, element by element.
TEST(Block, RangesOfAPartAreItsBlocksWithoutThePadding) {
    const Shape global{9, 4};
    const Part part{{6, 4}, {{{{1, 0}, {1, 4}}, 0}, {{{4, 0}, {1, 4}}, 8}, {{{7, 0}, {2, 4}}, 16}}};
    std::vector<int64_t> element(24, -1);  // of the global tensor, by place in the memory
    for (const auto& [block, begin] : part.blocks)
        for (int64_t i = 0; i < block.numel(); ++i) element[to_size(begin + i)] = (block.offset[0] + i / 4) * 4 + i % 4;
    for (int64_t begin = 0; begin <= 24; ++begin)
        for (int64_t end = begin; end <= 24; ++end) {
            std::vector<int64_t> found(to_size(end - begin), -1);
            for (const auto& [block, at] : blocks_of_range(part, begin, end)) {
                const std::vector<int64_t> elements = elements_of(global, block);
                std::copy(elements.begin(), elements.end(), found.begin() + at);
            }
            ASSERT_EQ(found, std::vector<int64_t>(element.begin() + begin, element.begin() + end))
                << begin << " " << end;
        }
}

TEST(Block, AWholeTensorIsOneBlockEvenWithoutElements) {
    EXPECT_EQ(blocks_of_range({3, 4, 5}, 0, 60), (std::vector<Block>{{{0, 0, 0}, {3, 4, 5}}}));
    EXPECT_EQ(blocks_of_range({3, 0}, 0, 0), (std::vector<Block>{{{0, 0}, {3, 0}}}));
    EXPECT_TRUE(blocks_of_range({3, 4}, 5, 5).empty());
    EXPECT_THROW(blocks_of_range({3, 4}, 5, 13), Error);
    EXPECT_THROW(blocks_of_range({3, 4}, -1, 3), Error);
}

TEST(Block, IntersectionsHoldTheCommonElements) {
    const Shape shape{4, 5};
    std::vector<Block> all;
    for (int64_t r = 0; r < 4; ++r)
        for (int64_t c = 0; c < 5; ++c)
            for (int64_t h = 1; h <= 4 - r; ++h)
                for (int64_t w = 1; w <= 5 - c; ++w) all.push_back({{r, c}, {h, w}});
    for (const Block& a : all)
        for (const Block& b : all) {
            std::vector<int64_t> expected;
            const auto in_a = elements_of(shape, a), in_b = elements_of(shape, b);
            std::set_intersection(in_a.begin(), in_a.end(), in_b.begin(), in_b.end(), std::back_inserter(expected));
            const Block both = intersection(a, b);
            ASSERT_EQ(both.numel(), static_cast<int64_t>(expected.size()));
            if (!expected.empty()) {
                ASSERT_EQ(elements_of(shape, both), expected);
            }
        }
}

TEST(Block, TilingNamesGapsAndOverlaps) {
    const Shape shape{4, 6};
    EXPECT_EQ(tiling_problem(shape, {whole_block(shape)}), "");
    EXPECT_EQ(tiling_problem(shape, {{{0, 3}, {4, 3}}, {{0, 0}, {4, 3}}}), "");  // columns
    EXPECT_EQ(tiling_problem(shape, {{{0, 0}, {2, 6}}, {{2, 0}, {2, 2}}, {{2, 2}, {2, 4}}}), "");
    EXPECT_EQ(tiling_problem({2, 0}, {whole_block({2, 0})}), "");
    EXPECT_TRUE(contains(tiling_problem(shape, {}), "hold 0 of its 24"));
    EXPECT_TRUE(contains(tiling_problem(shape, {{{0, 0}, {3, 6}}}), "hold 18 of its 24"));
    // As many elements as the tensor has, but not the right ones.
    EXPECT_TRUE(contains(tiling_problem(shape, {{{0, 0}, {4, 3}}, {{0, 2}, {4, 3}}}), "(4, 3) at (0, 2) overlap"));
    EXPECT_TRUE(contains(tiling_problem(shape, {whole_block(shape), whole_block(shape)}), "overlap"));
}

TEST(Block, LiesInChecksWithoutOverflow) {
    EXPECT_TRUE(lies_in({4, 6}, {{3, 0}, {1, 6}}));
    EXPECT_TRUE(lies_in({}, {{}, {}}));
    EXPECT_FALSE(lies_in({4, 6}, {{3, 0}, {2, 6}}));
    EXPECT_FALSE(lies_in({4, 6}, {{-1, 0}, {1, 6}}));
    EXPECT_FALSE(lies_in({4, 6}, {{3}, {1}}));
    EXPECT_FALSE(lies_in({4}, {{2}, {INT64_MAX}}));
    EXPECT_FALSE(lies_in({4}, {{INT64_MAX}, {2}}));
}

}  // namespace
}  // namespace tutti::mesh
