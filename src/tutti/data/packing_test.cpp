// data/packing_test.cpp: random records are packed as a plain first fit packs them; each token is a target once.
#include "tutti/data/packing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "tutti/base/to_size.h"

namespace tutti::data {
namespace {

struct Drawn {
    std::vector<int64_t> begins;
    int64_t end = 0;
};

Drawn draw_records(std::mt19937& random, int records, int64_t longest) {
    Drawn drawn;
    for (int i = 0; i < records; ++i) {
        drawn.begins.push_back(drawn.end);
        drawn.end += std::uniform_int_distribution<int64_t>(1, longest)(random);
    }
    return drawn;
}

// Windows as lists of (begin, count), each piece in the first window with room, found by looking at all of them.
std::vector<std::vector<std::pair<int64_t, int64_t>>> first_fit(const Drawn& records, int64_t room) {
    std::vector<std::vector<std::pair<int64_t, int64_t>>> windows;
    std::vector<int64_t> used;
    for (size_t i = 0; i < records.begins.size(); ++i) {
        const int64_t end = i + 1 < records.begins.size() ? records.begins[i + 1] : records.end;
        std::vector<std::pair<int64_t, int64_t>> pieces;
        int64_t at = records.begins[i];
        for (; end - at > room; at += room - 1) pieces.emplace_back(at, room);
        pieces.emplace_back(at, end - at);
        for (const auto& piece : pieces) {
            size_t w = 0;
            while (w < windows.size() && used[w] + piece.second > room) ++w;
            if (w == windows.size()) {
                windows.emplace_back();
                used.push_back(0);
            }
            windows[w].push_back(piece);
            used[w] += piece.second;
        }
    }
    return windows;
}

TEST(Packing, IsTheFirstFitAndEachTokenIsATargetOnce) {
    std::mt19937 random(5);
    for (int trial = 0; trial < 300; ++trial) {
        const int64_t seq_len = std::uniform_int_distribution<int64_t>(1, 40)(random);
        const Drawn records = draw_records(random, std::uniform_int_distribution<int>(1, 60)(random),
                                           trial % 2 == 0 ? seq_len + 1 : 3 * seq_len);
        const Packing packing(records.begins, records.end, seq_len);
        const auto expected = first_fit(records, seq_len + 1);
        ASSERT_EQ(packing.windows(), static_cast<int64_t>(expected.size()));
        std::map<int64_t, int> as_target;
        for (int64_t w = 0; w < packing.windows(); ++w) {
            const auto window = packing.window(w);
            ASSERT_EQ(window.size(), expected[to_size(w)].size());
            for (size_t i = 0; i < window.size(); ++i) {
                EXPECT_EQ(std::pair(window[i].begin, int64_t{window[i].count}), expected[to_size(w)][i]);
                const bool begins = std::ranges::binary_search(records.begins, window[i].begin);
                EXPECT_EQ(window[i].continues, !begins);
                for (int64_t t = 1; t < window[i].count; ++t) ++as_target[window[i].begin + t];
            }
        }
        for (int64_t t = 0; t < records.end; ++t)
            EXPECT_EQ(as_target[t], std::ranges::binary_search(records.begins, t) ? 0 : 1);
        if (trial % 2 == 0) {
            EXPECT_EQ(packing.cut_records(), 0);
        }
    }
}

}  // namespace
}  // namespace tutti::data
