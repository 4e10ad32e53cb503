// Places in an arena against gaps found by hand, and the same places in an arena of just the length that they need.
#include "tutti/device/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <tuple>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"

namespace tutti {
namespace {

// The smallest gap between blocks (bytes by place) that holds `bytes`, of equal ones the nearest; else behind the last.
int64_t best_gap(const std::map<int64_t, int64_t>& blocks, int64_t bytes) {
    std::optional<std::pair<int64_t, int64_t>> best;
    int64_t end = 0;
    for (const auto& [place, size] : blocks) {
        if (place - end >= bytes) best = std::min(best.value_or(std::pair(place - end, end)), {place - end, end});
        end = place + size;
    }
    return best ? best->second : end;
}

int64_t end_of(const std::map<int64_t, int64_t>& blocks) {
    return blocks.empty() ? 0 : blocks.rbegin()->first + blocks.rbegin()->second;
}

TEST(ArenaEnd, TakesTheSmallestGapAndEndsWithItsLastBlock) {
    std::mt19937 random(11);
    ArenaEnd end;
    std::map<int64_t, int64_t> blocks;
    for (int i = 0; i < 20'000; ++i) {
        const bool fills = i / 1000 % 2 == 0;  // now fuller, now emptier
        if (blocks.empty() || random() % 5 < (fills ? 3 : 2)) {
            const auto bytes = static_cast<int64_t>(1 + random() % (random() % 8 == 0 ? 700 : 60));
            const int64_t place = best_gap(blocks, bytes);
            ASSERT_EQ(end.place_of(bytes), place);
            ASSERT_EQ(end.take(bytes), place);
            blocks[place] = bytes;
        } else {
            const auto block = std::next(blocks.begin(), static_cast<std::ptrdiff_t>(random() % blocks.size()));
            end.give_back(block->first, block->second);
            blocks.erase(block);
        }
        ASSERT_EQ(end.length(), end_of(blocks));
    }
    for (const auto& [place, bytes] : blocks) end.give_back(place, bytes);
    EXPECT_EQ(end.length(), 0);
}

TEST(ArenaEnd, RefusesWhatWasNotTaken) {
    ArenaEnd end;
    EXPECT_THROW(end.give_back(0, 1), Error);
    EXPECT_EQ(end.take(10), 0);
    EXPECT_EQ(end.take(10), 10);
    EXPECT_EQ(end.take(10), 20);
    EXPECT_THROW(end.give_back(20, 11), Error);
    end.give_back(10, 10);
    EXPECT_THROW(end.give_back(10, 10), Error);
    EXPECT_THROW(end.give_back(5, 10), Error);
    EXPECT_THROW(end.give_back(15, 10), Error);
    end.give_back(0, 10);
    EXPECT_EQ(end.take(20), 0);
}

// As a run does in the arena whose length its rehearsal told.
TEST(Arena, OfTheLengthThatIsNeededHasTheSamePlaces) {
    constexpr int64_t kLong = int64_t{1} << 50;
    std::mt19937 random(12);
    for (int draw = 0; draw < 30; ++draw) {
        struct Act {
            bool takes;
            size_t block;
        };
        std::vector<Act> acts;
        std::vector<std::pair<int64_t, Arena::End>> blocks;
        std::vector<size_t> held;
        const size_t ends = 1 + random() % 3;  // blocks at both ends, or at one of them alone
        for (int i = 0; i < 400; ++i) {
            if (held.empty() || random() % 9 < 5) {
                const bool last = ends == 3 ? random() % 2 == 0 : ends == 2;
                acts.push_back({true, blocks.size()});
                held.push_back(blocks.size());
                blocks.emplace_back(1 + random() % 100, last ? Arena::End::last : Arena::End::first);
            } else {
                const size_t which = random() % held.size();
                acts.push_back({false, held[which]});
                held.erase(held.begin() + static_cast<std::ptrdiff_t>(which));
            }
        }
        const auto run = [&](std::byte* begin, int64_t bytes) {
            Arena arena(begin, bytes);
            std::vector<std::byte*> places(blocks.size());
            int64_t most = 0;
            for (const auto& [takes, block] : acts) {
                const auto [size, end] = blocks[block];
                if (!takes) {
                    arena.give_back(places[block], size, end);
                    continue;
                }
                most = std::max(most, arena.length_with(size, end));
                places[block] = static_cast<std::byte*>(arena.take(size, end));
                EXPECT_TRUE(arena.holds(places[block]) && arena.holds(places[block] + size - 1));
            }
            return std::pair(most, places);
        };
        auto* const begin = reinterpret_cast<std::byte*>(uint64_t{1} << 63);  // no byte is read
        const auto [needed, rehearsed] = run(begin, kLong);
        const auto [again, places] = run(begin, needed);
        ASSERT_EQ(again, needed);
        for (size_t i = 0; i < blocks.size(); ++i) {
            const int64_t from_end = blocks[i].second == Arena::End::last ? kLong - needed : 0;
            ASSERT_EQ(places[i], rehearsed[i] - from_end);
        }
        // No two blocks that are held together share a byte.
        std::vector<size_t> now;
        for (const auto& [takes, block] : acts) {
            if (!takes) {
                std::erase(now, block);
                continue;
            }
            for (const size_t other : now)
                ASSERT_TRUE(places[other] + blocks[other].first <= places[block] ||
                            places[block] + blocks[block].first <= places[other]);
            now.push_back(block);
        }
    }
}

}  // namespace
}  // namespace tutti
