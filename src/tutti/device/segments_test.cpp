// Random takes and returns against gaps found by hand, and the smallest cases.
#include "tutti/device/segments.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tutti/base/error.h"

namespace tutti {
namespace {

TEST(Segments, CutRangesAndLetThemGrowTogetherAgain) {
    std::vector<std::byte> a(100), b(40);
    Segments segments;
    segments.add(a.data(), 100);
    segments.add(b.data(), 40);
    EXPECT_EQ(segments.take(90), a.data());  // leaves 10 there
    EXPECT_EQ(segments.take(30), b.data());
    EXPECT_EQ(segments.take(10), a.data() + 90);
    EXPECT_EQ(segments.take(11), nullptr);
    EXPECT_EQ(segments.take(10), b.data() + 30);
    segments.give_back(a.data() + 90);
    segments.give_back(a.data());
    EXPECT_EQ(segments.take(100), a.data());
    segments.give_back(b.data());
    EXPECT_TRUE(segments.remove_unused().empty());  // both are in use
    segments.give_back(b.data() + 30);
    const auto unused = segments.remove_unused();
    ASSERT_EQ(unused.size(), 1u);
    EXPECT_EQ(unused[0].data, b.data());
    EXPECT_EQ(unused[0].bytes, 40);
    EXPECT_EQ(segments.take(1), nullptr);
    EXPECT_THROW(segments.give_back(b.data()), Error);
    segments.give_back(a.data());
    EXPECT_THROW(segments.give_back(a.data()), Error);
}

// Two segments that happen to touch stay two: the system takes each back by itself.
TEST(Segments, NeverGrowTogether) {
    std::vector<std::byte> memory(64);
    Segments segments;
    segments.add(memory.data() + 32, 32);
    segments.add(memory.data(), 32);
    EXPECT_EQ(segments.take(33), nullptr);
    EXPECT_EQ(segments.remove_unused().size(), 2u);
}

TEST(Segments, TakeOverThoseOfOthers) {
    std::vector<std::byte> a(100), b(40);
    Segments segments, other;
    segments.add(a.data(), 100);
    other.add(b.data(), 40);
    ASSERT_EQ(other.take(30), b.data());
    segments.absorb(other);
    EXPECT_EQ(other.take(1), nullptr);
    EXPECT_EQ(segments.take(100), a.data());
    EXPECT_EQ(segments.take(10), b.data() + 30);
    segments.give_back(b.data());
    segments.give_back(b.data() + 30);
    EXPECT_EQ(segments.take(40), b.data());
}

// The first gap of `bytes` between what is held.
std::byte* by_hand(std::vector<std::vector<std::byte>>& memory, const std::vector<Segments::Range>& held,
                   int64_t bytes) {
    for (auto& segment : memory) {
        std::byte* const end = segment.data() + segment.size();
        std::vector<Segments::Range> inside;
        for (const auto& h : held)
            if (h.data >= segment.data() && h.data < end) inside.push_back(h);
        std::sort(inside.begin(), inside.end(), [](auto& x, auto& y) { return x.data < y.data; });
        inside.push_back({end, 0});
        std::byte* at = segment.data();
        for (const auto& h : inside) {
            if (h.data - at >= bytes) return at;
            at = h.data + h.bytes;
        }
    }
    return nullptr;
}

TEST(Segments, NeverHandOutAByteTwiceAndLoseNone) {
    constexpr int64_t kSize = 1000, kSegments = 3;
    std::mt19937 random(7);
    std::vector<std::vector<std::byte>> memory(kSegments, std::vector<std::byte>(kSize));
    Segments segments;
    for (auto& m : memory) segments.add(m.data(), kSize);
    std::vector<Segments::Range> held;
    for (int i = 0; i < 20'000; ++i) {
        if (random() % 2 == 0 || held.empty()) {
            const auto bytes = static_cast<int64_t>(1 + random() % (random() % 8 == 0 ? 700 : 60));
            auto* const data = static_cast<std::byte*>(segments.take(bytes));
            ASSERT_EQ(data, by_hand(memory, held, bytes));
            if (data == nullptr) continue;
            for (const auto& h : held) ASSERT_TRUE(data + bytes <= h.data || h.data + h.bytes <= data);
            held.push_back({data, bytes});
        } else {
            const size_t which = random() % held.size();
            segments.give_back(held[which].data);
            held.erase(held.begin() + static_cast<std::ptrdiff_t>(which));
        }
    }
    for (const auto& h : held) segments.give_back(h.data);
    int64_t all = 0;
    for (const auto& segment : segments.remove_unused()) all += segment.bytes;
    EXPECT_EQ(all, kSegments * kSize);
}

}  // namespace
}  // namespace tutti
