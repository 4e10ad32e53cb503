// Two ranks that share a group choose the same tags for it, which no other group of the two has, even if hashes
// collide.
#include "tutti/comm/processes/tags.h"

#include <gtest/gtest.h>

#include <set>

#include "tutti/base/error.h"

namespace tutti::comm::processes {
namespace {

constexpr int kMpiMinimum = 32767;  // MPI_TAG_UB of the standard

// Keys below 2^32 that differ by the number of possible groups have the same preferred tag.
uint64_t colliding(uint64_t key, int highest) { return key + static_cast<uint64_t>(highest / kUses - 1); }

TEST(Tags, OfGroupsWithEqualHashesDifferAndBothEndsAgree) {
    const uint64_t first = 5, second = colliding(first, kMpiMinimum);
    ASSERT_EQ(preferred_tag(first, kMpiMinimum), preferred_tag(second, kMpiMinimum));
    Tags low(kMpiMinimum), high(kMpiMinimum);  // of ranks 0 and 1
    const int a = low.claim(1, first), b = low.claim(1, second);
    EXPECT_EQ(a, preferred_tag(first, kMpiMinimum));
    EXPECT_EQ(b, a + kUses);
    EXPECT_EQ(high.claim(0, first), a);
    high.claim(7, second + 1);  // a group that does not include rank 0
    EXPECT_EQ(high.claim(0, second), b);
}

TEST(Tags, MayBeEqualWhereNoTwoRanksShareBothGroups) {
    const uint64_t first = 5, second = colliding(first, kMpiMinimum);
    Tags tags(kMpiMinimum);
    EXPECT_EQ(tags.claim(1, first), tags.claim(2, second));
}

// 4,094 groups fit the fewest tags that MPI may have.
TEST(Tags, AreAllUsedBeforeThereIsAnError) {
    Tags tags(kMpiMinimum);
    std::set<int> seen;
    for (uint64_t key = 1; key <= 4094; ++key) seen.insert(tags.claim(1, key * key * 0x9e3779b97f4a7c15));
    EXPECT_EQ(seen.size(), 4094u);
    EXPECT_EQ(*seen.begin(), kUses);
    EXPECT_EQ(*seen.rbegin(), 4094 * kUses);
    try {
        tags.claim(1, 1);
        FAIL() << "no error";
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("share 4094 groups"), std::string::npos) << error.what();
    }
    EXPECT_NO_THROW(tags.claim(2, 1));
}

}  // namespace
}  // namespace tutti::comm::processes
