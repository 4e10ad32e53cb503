// base/philox.h: counter-based random numbers. A number is a pure function of (key, index): no generator state exists,
// so N ranks, a resumed run and a recomputed forward draw the same values.
//
// Philox4x32-10: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>

namespace tutti {

// The identity of one stream of numbers. Make it from what the stream is for: random_key(seed, "h.3.attn.weight").
using RandomKey = uint64_t;

constexpr uint64_t mix64(uint64_t x) {  // splitmix64 finalizer (Steele et al., 2014)
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

constexpr RandomKey random_key(uint64_t seed, std::string_view purpose, uint64_t step = 0) {
    uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
    for (char c : purpose) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    return mix64(mix64(seed) ^ mix64(hash) ^ mix64(step + 0x51ed2701u));
}

// Four 32-bit words for counter (index, 0).
constexpr std::array<uint32_t, 4> philox(RandomKey key, uint64_t index) {
    std::array<uint32_t, 4> c = {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), 0, 0};
    uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
        const uint64_t p0 = uint64_t{0xD2511F53u} * c[0], p1 = uint64_t{0xCD9E8D57u} * c[2];
        c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
             static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c;
}

// The `index`-th uniform of the stream, in [0, 1), a multiple of 2^-24. Four indices share one Philox block.
constexpr float uniform(RandomKey key, uint64_t index) {
    return static_cast<float>(philox(key, index / 4)[index % 4] >> 8) * 0x1p-24f;
}

// Standard normals 2 * pair and 2 * pair + 1 of the stream (Box-Muller in double); they share one Philox block.
inline std::array<float, 2> normal_pair(RandomKey key, uint64_t pair) {
    const auto words = philox(key, pair);
    const double u1 = (static_cast<double>(words[0]) + 1.0) * 0x1p-32;  // (0, 1]
    const double u2 = static_cast<double>(words[1]) * 0x1p-32;
    const double radius = std::sqrt(-2.0 * std::log(u1)), angle = 6.283185307179586 * u2;
    return {static_cast<float>(radius * std::cos(angle)), static_cast<float>(radius * std::sin(angle))};
}

// The `index`-th standard normal of the stream.
inline float normal(RandomKey key, uint64_t index) { return normal_pair(key, index / 2)[index % 2]; }

// A uniform integer in [0, n), n > 0 (Lemire's multiply-shift on 64 bits; bias below n / 2^64).
inline uint64_t uniform_below(RandomKey key, uint64_t index, uint64_t n) {
    const auto words = philox(key, index);
    const uint64_t bits = (static_cast<uint64_t>(words[0]) << 32) | words[1];
    return static_cast<uint64_t>((static_cast<unsigned __int128>(bits) * n) >> 64);
}

}  // namespace tutti
