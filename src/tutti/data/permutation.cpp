// data/permutation.cpp: the Feistel network behind the order of samples. Its values are part of what a resumed run
// relies on: permutation_test.cpp pins them.
#include "tutti/data/permutation.h"

#include <array>
#include <bit>
#include <utility>

#include "tutti/base/error.h"

namespace tutti::data {

namespace {

constexpr size_t kRounds = 10;

std::array<uint64_t, kRounds> round_keys(RandomKey key) {
    std::array<uint64_t, kRounds> keys{};
    for (size_t r = 0; r < kRounds; r += 2) {
        const auto words = philox(key, r / 2);
        keys[r] = (uint64_t{words[0]} << 32) | words[1];
        keys[r + 1] = (uint64_t{words[2]} << 32) | words[3];
    }
    return keys;
}

}  // namespace

int64_t permute(RandomKey key, int64_t n, int64_t i) {
    check(n > 0 && n <= (int64_t{1} << 62) && 0 <= i && i < n, "permute: element ", i, " of ", n);
    if (n == 1) return 0;
    const auto limit = static_cast<uint64_t>(n);
    const int half = (std::bit_width(limit - 1) + 1) / 2;  // bits; 4^half >= n > 4^(half-1)
    const uint64_t mask = (uint64_t{1} << half) - 1;
    const auto keys = round_keys(key);

    auto x = static_cast<uint64_t>(i);
    do {
        uint64_t left = x >> half, right = x & mask;
        for (uint64_t round_key : keys) left = std::exchange(right, left ^ (mix64(round_key ^ right) & mask));
        x = (left << half) | right;
    } while (x >= limit);
    return static_cast<int64_t>(x);
}

}  // namespace tutti::data
