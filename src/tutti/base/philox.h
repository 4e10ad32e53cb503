// base/philox.h: counter-based random numbers. A number is a pure function of (key, index), without generator state, so
// that every layout, a resumed run and a recomputed forward draw the same values.
//
// Philox4x32-10: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "tutti/base/host_device.h"

namespace tutti {

// Identifies a stream of numbers; made from the stream's purpose: random_key(seed, "h.3.attn.weight").
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

// Two standard normals from two words (Box-Muller in double, rounded once), by + - * / and sqrt in a fixed order,
// without a maths library, so that all machines, and kernels compiled without fused multiply-adds, get the same bits.
// The error of the series is below 1e-12, far less than the rounding to float.
TUTTI_HOST_DEVICE inline void box_muller(uint32_t word1, uint32_t word2, float& first, float& second) {
    // n = word1 + 1 = m 2^e with m in [sqrt(1/2), sqrt(2)); ln m = 2 atanh((m - 1) / (m + 1)).
    const double n = std::bit_cast<double>(uint64_t{0x4330000000000000} | word1) - 0x1p52 + 1.0;
    const auto bits = std::bit_cast<uint64_t>(n);
    const uint64_t exponent = (bits - 0x3fe6a09e667f3bcdu) >> 52;
    const double m = std::bit_cast<double>(bits - (exponent << 52));
    const double e = std::bit_cast<double>(uint64_t{0x4330000000000000} | exponent) - 0x1p52;
    const double s = (m - 1.0) / (m + 1.0), z = s * s;
    double series = z * (1.0 / 15) + 1.0 / 13;
    series = series * z + 1.0 / 11;
    series = series * z + 1.0 / 9;
    series = series * z + 1.0 / 7;
    series = series * z + 1.0 / 5;
    series = series * z + 1.0 / 3;
    series = series * z + 1.0;
    const double radius = std::sqrt(-2.0 * ((e - 32.0) * 0.6931471805599453 + 2.0 * s * series));

    // angle = 2 pi word2 / 2^32 = quarter pi/2 + x with |x| <= pi/4.
    const uint32_t quarter = (word2 + 0x20000000u) >> 30;
    const double x = static_cast<double>(static_cast<int32_t>(word2 - (quarter << 30))) * 1.4629180792671596e-9;
    const double y = x * x;
    double sine = y * (1.0 / 6227020800) - 1.0 / 39916800;
    sine = sine * y + 1.0 / 362880;
    sine = sine * y - 1.0 / 5040;
    sine = sine * y + 1.0 / 120;
    sine = sine * y - 1.0 / 6;
    sine = sine * y * x + x;
    double cosine = y * (-1.0 / 87178291200) + 1.0 / 479001600;
    cosine = cosine * y - 1.0 / 3628800;
    cosine = cosine * y + 1.0 / 40320;
    cosine = cosine * y - 1.0 / 720;
    cosine = cosine * y + 1.0 / 24;
    cosine = cosine * y - 0.5;
    cosine = cosine * y + 1.0;
    const bool odd = (quarter & 1) != 0;
    const double real = odd ? sine : cosine, imaginary = odd ? cosine : sine;
    first = static_cast<float>(radius * (((quarter + 1) & 2) != 0 ? -real : real));
    second = static_cast<float>(radius * ((quarter & 2) != 0 ? -imaginary : imaginary));
}

// The `index`-th standard normal of the stream. Four indices share one Philox block.
inline float normal(RandomKey key, uint64_t index) {
    const auto words = philox(key, index / 4);
    const size_t pair = index % 4 / 2;
    float two[2];
    box_muller(words[2 * pair], words[2 * pair + 1], two[0], two[1]);
    return two[index % 2];
}

// A uniform integer in [0, n), n > 0 (Lemire's multiply-shift on 64 bits; bias below n / 2^64).
constexpr uint64_t uniform_below(RandomKey key, uint64_t index, uint64_t n) {
    const auto words = philox(key, index);
    const uint64_t bits = (static_cast<uint64_t>(words[0]) << 32) | words[1];
    return static_cast<uint64_t>((static_cast<unsigned __int128>(bits) * n) >> 64);
}

}  // namespace tutti
