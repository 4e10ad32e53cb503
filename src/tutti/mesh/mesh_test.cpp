// The mesh against its definition: every element of a sharded tensor is held exactly once per replica.
#include "tutti/mesh/mesh.h"

#include <gtest/gtest.h>

#include <map>

namespace tutti::mesh {
namespace {

const Mesh kMesh({{"tp", 2}, {"cp", 1}, {"dp_shard", 3}, {"pp", 2}});

TEST(Mesh, FirstAxisIsFastest) {
    EXPECT_EQ(kMesh.size(), 12);
    EXPECT_EQ(kMesh.coordinate(1, "tp"), 1);
    EXPECT_EQ(kMesh.coordinate(2, "dp_shard"), 1);
    EXPECT_EQ(kMesh.coordinate(6, "pp"), 1);
    EXPECT_EQ(kMesh.group(3, "tp"), (std::vector<int>{2, 3}));
    EXPECT_EQ(kMesh.group(3, "dp_shard"), (std::vector<int>{1, 3, 5}));
    EXPECT_EQ(kMesh.group(3, "ep"), (std::vector<int>{3}));
}

// The lecture's example: 16 GPUs, tp 2, dp 2, pp 4: tp pairs are neighbours.
TEST(Mesh, LectureExample) {
    const Mesh mesh({{"tp", 2}, {"dp_shard", 2}, {"pp", 4}});
    EXPECT_EQ(mesh.group(0, "tp"), (std::vector<int>{0, 1}));
    EXPECT_EQ(mesh.group(0, "pp"), (std::vector<int>{0, 4, 8, 12}));
}

void expect_cover(const Mesh& mesh, const Shape& global, const Placement& placement, int copies) {
    std::map<std::pair<int64_t, int64_t>, int> held;
    for (int rank = 0; rank < mesh.size(); ++rank)
        for (const Block& b : local_blocks(mesh, rank, global, placement, "w"))
            for (int64_t i = 0; i < b.sizes[0]; ++i)
                for (int64_t j = 0; j < b.sizes[1]; ++j) ++held[{b.offset[0] + i, b.offset[1] + j}];
    EXPECT_EQ(static_cast<int64_t>(held.size()), global.numel());
    for (const auto& [at, count] : held) EXPECT_EQ(count, copies) << at.first << ", " << at.second;
}

TEST(Placement, EveryElementIsHeldOncePerReplica) {
    expect_cover(kMesh, {12, 6}, {}, 12);
    expect_cover(kMesh, {12, 6}, {{"tp", 0}}, 6);
    expect_cover(kMesh, {12, 6}, {{"tp", 1}, {"dp_shard", 0}}, 2);
    expect_cover(kMesh, {12, 6}, {{"tp", 0}, {"dp_shard", 0}}, 2);
    expect_cover(kMesh, {12, 6}, {{"tp", 0, 3}}, 6);
}

TEST(Placement, SectionsAreCutOneByOne) {
    const Mesh mesh({{"tp", 2}});
    const auto blocks = local_blocks(mesh, 1, {12, 4}, {{"tp", 0, 3}}, "c_attn");
    ASSERT_EQ(blocks.size(), 3u);
    EXPECT_EQ(blocks[0].offset, (Shape{2, 0}));
    EXPECT_EQ(blocks[1].offset, (Shape{6, 0}));
    EXPECT_EQ(blocks[2].offset, (Shape{10, 0}));
    EXPECT_EQ(blocks[2].local, (Shape{4, 0}));
    EXPECT_EQ(local_shape(mesh, {12, 4}, {{"tp", 0, 3}}, "c_attn"), (Shape{6, 4}));
}

TEST(Placement, NamesWhatDoesNotDivide) {
    try {
        local_shape(kMesh, {10, 5}, {{"tp", 1}}, "h.0.w");
        FAIL();
    } catch (const UsageError& e) {
        EXPECT_NE(std::string(e.what()).find("h.0.w (10, 5): dim 1 has 5 values to cut over 2 ranks of axis tp"),
                  std::string::npos)
            << e.what();
    }
}

}  // namespace
}  // namespace tutti::mesh
