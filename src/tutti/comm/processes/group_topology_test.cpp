// Sums of a host's subtrees add up to the bits of the whole tree, whatever ranks the host has; rails reach all ranks.
#include "tutti/comm/processes/group_topology.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "tutti/base/to_size.h"
#include "tutti/comm/tree_reduce.h"

namespace tutti::comm::processes {
namespace {

TEST(GroupTopology, AHostOfAPowerOfTwoIsOneSubtree) {
    const GroupTopology topology = GroupTopology::of({7, 7, 7, 7, 9, 9, 9, 9}, 5);
    EXPECT_EQ(topology.hosts(), 2);
    EXPECT_EQ(topology.rails, 4);
    EXPECT_EQ(topology.host, 1);
    ASSERT_EQ(topology.forest.size(), 2u);
    EXPECT_EQ(topology.forest[1].first, 4);
    EXPECT_EQ(topology.forest[1].count, 4);
    EXPECT_EQ(topology.handler(0, topology.position[5]), 1);
}

TEST(GroupTopology, OtherHostsHaveSeveralSubtrees) {
    // ((0 1)(2 3))(4 5), split after rank 2.
    const GroupTopology topology = GroupTopology::of({0, 0, 0, 1, 1, 1}, 0);
    std::vector<std::vector<int>> found;
    for (const Subtree& t : topology.forest) found.push_back({t.first, t.count, t.host});
    EXPECT_EQ(found, (std::vector<std::vector<int>>{{0, 2, 0}, {2, 1, 0}, {3, 1, 1}, {4, 2, 1}}));
}

TEST(GroupTopology, MembersFewerThanRailsHandleSeveral) {
    const GroupTopology topology = GroupTopology::of({0, 1, 1, 1}, 0);
    EXPECT_EQ(topology.rails, 3);
    for (int rail = 0; rail < 3; ++rail) EXPECT_EQ(topology.handler(0, rail), 0);
    EXPECT_EQ(topology.handler(1, 2), 3);
}

// Sums of subtrees, reduced with their numbers of ranks, equal the flat sum bit for bit: 300 random placements.
TEST(TreeReduce, SumsOfSubtreesGiveTheBitsOfTheFlatSum) {
    std::mt19937 random(3);
    for (int round = 0; round < 300; ++round) {
        const int n = 1 + static_cast<int>(random() % 13), hosts = 1 + static_cast<int>(random() % 4);
        std::vector<int> host(to_size(n));
        for (int& h : host) h = static_cast<int>(random() % static_cast<unsigned>(hosts));
        if (round % 2) std::sort(host.begin(), host.end());
        std::vector<float> values(to_size(n));
        for (float& v : values) v = std::ldexp(static_cast<float>(random()) - 2e9f, static_cast<int>(random() % 40));
        std::vector<const void*> inputs;
        for (const float& v : values) inputs.push_back(&v);
        float flat = 0, tree = 0;
        void* out = &flat;
        tree_reduce(Reduce::sum, DType::f32, inputs, DType::f32, {&out, 1}, 0, 1);
        const GroupTopology topology = GroupTopology::of(host, 0);
        std::vector<float> partial(topology.forest.size());
        std::vector<const void*> partials;
        std::vector<int> ranks;
        for (size_t i = 0; i < partial.size(); ++i) {
            const Subtree& t = topology.forest[i];
            out = &partial[i];
            tree_reduce(Reduce::sum, DType::f32, std::span(inputs).subspan(to_size(t.first), to_size(t.count)),
                        DType::f32, {&out, 1}, 0, 1);
            partials.push_back(&partial[i]);
            ranks.push_back(t.count);
        }
        out = &tree;
        tree_reduce(Reduce::sum, DType::f32, partials, DType::f32, {&out, 1}, 0, 1, ranks);
        EXPECT_EQ(flat, tree) << "round " << round;
    }
}

}  // namespace
}  // namespace tutti::comm::processes
