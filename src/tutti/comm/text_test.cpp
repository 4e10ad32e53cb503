// Texts of different lengths reach every rank.
#include "tutti/comm/text.h"

#include <gtest/gtest.h>

#include "tutti/comm/threads/thread_world.h"

namespace tutti::comm {
namespace {

TEST(GatherTexts, EveryRankGetsAllOfThem) {
    for (int n : {1, 2, 5}) {
        run_ranks(n, {.timeout_s = 60}, [&](World& world) {
            std::vector<int> ranks;
            std::vector<std::string> expected;
            for (int r = 0; r < n; ++r) {
                ranks.push_back(r);
                expected.push_back(std::string(static_cast<size_t>(r * r * 1000), static_cast<char>('a' + r)) +
                                   std::string("\0\xff", 2));
            }
            const auto group = world.group("dp", ranks);
            EXPECT_EQ(gather_texts(*group, expected[static_cast<size_t>(world.rank())]), expected);
            EXPECT_EQ(gather_texts(*group, ""), std::vector<std::string>(static_cast<size_t>(n)));
        });
    }
}

}  // namespace
}  // namespace tutti::comm
