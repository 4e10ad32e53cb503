// The mesh against its definition: every element of a sharded tensor is held exactly once per replica.
#include "tutti/mesh/mesh.h"

#include <gtest/gtest.h>

#include <map>

#include "tutti/base/to_size.h"

namespace tutti::mesh {
namespace {

constexpr Axis kTpPart = Axis::tp_part, kShard = Axis::dp_shard;
const Mesh kMesh({{kTpPart, 2}, {Axis::cp_ring, 1}, {kShard, 3}, {Axis::pp, 2}});

TEST(Mesh, FirstAxisIsFastest) {
    EXPECT_EQ(kMesh.size(), 12);
    EXPECT_EQ(kMesh.coordinate(1, kTpPart), 1);
    EXPECT_EQ(kMesh.coordinate(2, kShard), 1);
    EXPECT_EQ(kMesh.coordinate(6, Axis::pp), 1);
    EXPECT_EQ(kMesh.group(3, kTpPart), (std::vector<int>{2, 3}));
    EXPECT_EQ(kMesh.group(3, kShard), (std::vector<int>{1, 3, 5}));
    EXPECT_EQ(kMesh.group(3, Axis::cp_ring), (std::vector<int>{3}));
}

// The lecture's example: 16 GPUs, tp 2, dp 2, pp 4: tp pairs are neighbours.
TEST(Mesh, LectureExample) {
    const Mesh mesh({{kTpPart, 2}, {kShard, 2}, {Axis::pp, 4}});
    EXPECT_EQ(mesh.group(0, kTpPart), (std::vector<int>{0, 1}));
    EXPECT_EQ(mesh.group(0, Axis::pp), (std::vector<int>{0, 4, 8, 12}));
}

// A group over several axes has all ranks that agree on every other axis, in the order of ranks, which is that of
// coordinates.
TEST(Mesh, GroupsOverSetsOfAxes) {
    const Axes sets[] = {
        {}, kTpPart, {kTpPart, kShard}, {kTpPart, Axis::pp}, {kShard, Axis::pp}, {kTpPart, kShard, Axis::pp}};
    for (const Axes axes : sets)
        for (int rank = 0; rank < kMesh.size(); ++rank) {
            std::vector<int> expected;
            for (int other = 0; other < kMesh.size(); ++other) {
                bool agrees = true;
                for (const AxisSize& a : kMesh.axes())
                    agrees = agrees && (axes.contains(a.axis) ||
                                        kMesh.coordinate(rank, a.axis) == kMesh.coordinate(other, a.axis));
                if (agrees) expected.push_back(other);
            }
            ASSERT_EQ(kMesh.group(rank, axes), expected) << name_of(axes);
            ASSERT_EQ(kMesh.size(axes), static_cast<int>(expected.size()));
            ASSERT_EQ(expected[to_size(kMesh.coordinate(rank, axes))], rank) << name_of(axes);
        }
}

// Experts on a second grid over the ranks of tp 2 x cp 1 x dp_shard 3, at both places along pp.
TEST(Mesh, SecondGridOverTheSameRanks) {
    const Mesh mesh(kMesh.axes(), {{Axis::etp, 1}, {Axis::ep, 3}, {Axis::edp, 2}, {Axis::pp, 2}});
    EXPECT_EQ(mesh.group(7, Axis::ep), (std::vector<int>{6, 7, 8}));
    EXPECT_EQ(mesh.group(7, Axis::edp), (std::vector<int>{7, 10}));
    EXPECT_EQ(mesh.group(7, {Axis::ep, Axis::edp}), (std::vector<int>{6, 7, 8, 9, 10, 11}));
    for (int rank = 0; rank < mesh.size(); ++rank) {
        EXPECT_EQ(mesh.group(rank, Axis::pp), kMesh.group(rank, Axis::pp));
        EXPECT_EQ(mesh.coordinate(rank, {Axis::ep, Axis::edp}), rank % 6);
        const Part part = part_of(mesh, rank, {6, 4}, {{.axes = Axis::ep}}, "experts");
        EXPECT_EQ(part.blocks[0].block.offset[0], rank % 3 * 2);
    }
    EXPECT_THROW(mesh.size({Axis::ep, kShard}), Error);  // of two grids
    EXPECT_THROW(Mesh(kMesh.axes(), {{Axis::ep, 5}}), UsageError);
}

TEST(Mesh, AnAxisThatItLacksIsAnError) {
    for (const Axes axes : {Axes(Axis::dp_replicate), kDp, kTp}) {
        EXPECT_THROW(kMesh.size(axes), Error);
        EXPECT_THROW(kMesh.coordinate(0, axes), Error);
        EXPECT_THROW(kMesh.group(0, axes), Error);
    }
    EXPECT_THROW(Mesh({{kShard, 2}, {kShard, 3}}), Error);
    EXPECT_THROW(Mesh({{kShard, 0}}), UsageError);
}

TEST(Mesh, SetsAreNamedAsTheFieldDoes) {
    EXPECT_EQ(name_of(kDp), "dp");
    EXPECT_EQ(name_of(kTp), "tp");
    EXPECT_EQ(name_of(Axes(kShard)), "dp_shard");
    EXPECT_EQ(name_of(Axes{kCp, kShard}), "cp+dp_shard");
    EXPECT_EQ(name_of(Axes{Axis::cp_ring, kShard}), "cp_ring+dp_shard");
}

void expect_cover(const Mesh& mesh, const Shape& global, const Placement& placement, int copies) {
    std::map<std::pair<int64_t, int64_t>, int> held;
    for (int rank = 0; rank < mesh.size(); ++rank) {
        const Part part = part_of(mesh, rank, global, placement, "w");
        EXPECT_EQ(part.shape, part_of(mesh, 0, global, placement, "w").shape);
        int64_t end = 0;  // blocks lie one after another, perhaps with padding between
        for (const auto& [b, begin] : part.blocks) {
            EXPECT_GE(begin, end);
            end = begin + b.numel();
            for (int64_t i = 0; i < b.sizes[0]; ++i)
                for (int64_t j = 0; j < b.sizes[1]; ++j) ++held[{b.offset[0] + i, b.offset[1] + j}];
        }
        EXPECT_LE(end, part.shape.numel());
    }
    EXPECT_EQ(static_cast<int64_t>(held.size()), global.numel());
    for (const auto& [at, count] : held) EXPECT_EQ(count, copies) << at.first << ", " << at.second;
}

TEST(Placement, EveryElementIsHeldOncePerReplica) {
    expect_cover(kMesh, {12, 6}, {}, 12);
    expect_cover(kMesh, {12, 6}, {{kTpPart, 0}}, 6);
    expect_cover(kMesh, {12, 6}, {{kTpPart, 1}, {kShard, 0}}, 2);
    expect_cover(kMesh, {12, 6}, {{{kTpPart, kShard}, 0}}, 2);
    expect_cover(kMesh, {12, 6}, {{kTpPart, 0, 1, 3}}, 6);
    expect_cover(kMesh, {24, 6}, {{kShard, 0, 2, 4}}, 4);
    for (int64_t rows = 1; rows < 14; ++rows) expect_cover(kMesh, {rows, 2}, {{.axes = kShard, .padded = true}}, 4);
    for (int64_t rows = 2; rows < 30; rows += 2)
        expect_cover(kMesh, {rows, 2}, {{.axes = {kTpPart, kShard}, .grain = 2, .padded = true}}, 2);
}

TEST(Placement, SectionsAreCutOneByOne) {
    const Mesh mesh({{kTpPart, 2}});
    const Part part = part_of(mesh, 1, {12, 4}, {{kTpPart, 0, 1, 3}}, "c_attn");
    EXPECT_EQ(part.shape, (Shape{6, 4}));
    EXPECT_EQ(part.blocks,
              (std::vector<HeldBlock>{{{{2, 0}, {2, 4}}, 0}, {{{6, 0}, {2, 4}}, 8}, {{{10, 0}, {2, 4}}, 16}}));
}

// A vocabulary of 5 tiles of 64 and one of 10 over 4 ranks: two tiles each, of which the third has one and a half.
TEST(Placement, TheLastPartsMayBePadded) {
    const Mesh mesh({{kTpPart, 4}});
    const std::vector<std::pair<int64_t, int64_t>> rows = {{0, 128}, {128, 128}, {256, 74}, {330, 0}};
    for (int rank = 0; rank < 4; ++rank) {
        const Part part = part_of(mesh, rank, {330, 3}, {{.axes = kTpPart, .grain = 64, .padded = true}}, "wte");
        EXPECT_EQ(part.shape, (Shape{128, 3}));
        const auto [first, count] = rows[to_size(rank)];
        if (count == 0)
            EXPECT_TRUE(part.blocks.empty());
        else
            EXPECT_EQ(part.blocks, (std::vector<HeldBlock>{{{{first, 0}, {count, 3}}, 0}}));
    }
    // One rank holds whole tiles, too.
    const Part whole =
        part_of(Mesh({{kTpPart, 1}}), 0, {330, 3}, {{.axes = kTpPart, .grain = 64, .padded = true}}, "wte");
    EXPECT_EQ(whole.shape, (Shape{384, 3}));
    EXPECT_EQ(whole.blocks, (std::vector<HeldBlock>{{{{0, 0}, {330, 3}}, 0}}));
}

// Ranks along tp_copy have the same key and value heads; queries are cut by both axes.
TEST(Placement, CopiesOfKeyAndValueHeadsSitBesideTheQueriesThatReadThem) {
    const Mesh mesh({{Axis::tp_copy, 2}, {kTpPart, 2}});
    const int64_t heads = 8, kv_heads = 2, D = 4;
    for (int rank = 0; rank < 4; ++rank) {
        const Block q = part_of(mesh, rank, {heads * D, 1}, {{.axes = kTp, .grain = D}}, "q").blocks[0].block;
        const Block k = part_of(mesh, rank, {kv_heads * D, 1}, {{.axes = kTpPart, .grain = D}}, "k").blocks[0].block;
        for (int64_t head = q.offset[0] / D; head < (q.offset[0] + q.sizes[0]) / D; ++head)
            EXPECT_EQ(head / (heads / kv_heads), k.offset[0] / D) << rank;
    }
}

std::string error_of(const Shape& global, const Placement& placement) {
    try {
        part_of(kMesh, 0, global, placement, "h.0.w");
    } catch (const UsageError& e) {
        return e.what();
    }
    return "";
}

TEST(Placement, NamesWhatDoesNotDivide) {
    EXPECT_NE(
        error_of({10, 5}, {{kTpPart, 1}}).find("h.0.w (10, 5): dim 1 has 5 values to cut over 2 ranks of axis tp_part"),
        std::string::npos);
    // Three heads of four over two ranks: a head is never cut.
    EXPECT_NE(
        error_of({12, 5}, {{kTpPart, 0, 4}})
            .find(
                "dim 0 has 12 values to cut over 2 ranks of axis tp_part; the axis must divide the size in steps of 4"),
        std::string::npos);
    EXPECT_NE(error_of({10, 5}, {{kTpPart, 0, 1, 3}}).find("dim 0 has no 3 equal sections"), std::string::npos);
}

}  // namespace
}  // namespace tutti::mesh
