#include <gtest/gtest.h>

#include "tutti/rehearsal/card.h"

namespace tutti::rehearsal {
namespace {

using mesh::Axis;

TEST(RanksText, OfAFewAndOfMany) {
    EXPECT_EQ(ranks_text({3}), "3");
    EXPECT_EQ(ranks_text({0, 1}), "0, 1");
    EXPECT_EQ(ranks_text({4, 5, 6, 7}), "4 to 7");
    EXPECT_EQ(ranks_text({0, 2, 4, 6}), "0, 2, 4, 6");
    EXPECT_EQ(ranks_text({0, 16, 32, 48, 64}), "0, 16, ..., 64");
    EXPECT_EQ(ranks_text({0, 1, 4, 5, 8, 9}), "0, 1, 4, 5, 8, 9");
}

TEST(Placement, WarnsWhereTensorParallelismCrossesHosts) {
    const mesh::Mesh mesh({{Axis::tp_copy, 1}, {Axis::tp_part, 2}, {Axis::dp_shard, 2}});
    EXPECT_EQ(placement_warning(mesh, {"a", "a", "b", "b"}, 1 << 20), "");
    EXPECT_EQ(placement_warning(mesh, {"a", "a", "a", "a"}, 1 << 20), "");
    EXPECT_EQ(
        placement_warning(mesh, {"a", "b", "a", "b"}, 1 << 20),
        "tensor parallelism crosses hosts: ranks 0, 1 of one group are on 2 hosts, and each rank sends 1.00 MiB in "
        "this group in a step; put ranks that are neighbours on one host (mpirun --map-by slot)");
    const mesh::Mesh wide({{Axis::tp_copy, 2}, {Axis::tp_part, 2}, {Axis::dp_shard, 1}});
    EXPECT_EQ(placement_warning(wide, {"a", "a", "b", "b"}, 0),
              "tensor parallelism crosses hosts: ranks 0 to 3 of one group are on 2 hosts, and each rank sends 0 B in "
              "this group in a step; set parallel.tp to 2 or less, the ranks of a host, and use cp, pp or data "
              "parallelism between hosts");
    EXPECT_EQ(
        placement_warning(mesh::Mesh({{Axis::tp_copy, 1}, {Axis::tp_part, 1}, {Axis::dp_shard, 2}}), {"a", "b"}, 0),
        "");
    EXPECT_THROW(placement_warning(mesh, {"a"}, 0), Error);
}

}  // namespace
}  // namespace tutti::rehearsal
