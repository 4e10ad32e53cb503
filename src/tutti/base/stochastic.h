// base/stochastic.h: stochastic rounding to bf16. The random bits of an element are a pure function of a key and the
// element's index in the global tensor, so that every layout, every copy and a resumed run round alike.
#pragma once

#include <string>

#include "tutti/base/dtype.h"
#include "tutti/base/philox.h"

namespace tutti {

// The key of a parameter or of one of its moments in an update: rounding_key(seed, "m.", "h.0.w", 7).
inline RandomKey rounding_key(uint64_t seed, const std::string& what, const std::string& parameter, int64_t update) {
    return random_key(seed, "optimizer.round." + what + parameter, static_cast<uint64_t>(update));
}

// 16 random bits of element e: half e mod 2 of word (e mod 8) / 2 of block e / 8 (eight elements share a block).
constexpr uint32_t rounding_bits(RandomKey key, uint64_t e) {
    return philox(key, e / 8)[e % 8 / 2] >> (e % 2 * 16) & 0xffffu;
}

// x rounded down or up in magnitude, up with the probability of the discarded fraction, so that the mean is x. A finite
// value stays finite; infinities and NaN as by bf16_bits().
constexpr uint16_t stochastic_bf16_bits(float x, uint32_t random16) {
    const uint32_t u = std::bit_cast<uint32_t>(x);
    if ((u & 0x7f800000u) == 0x7f800000u) return bf16_bits(x);
    const auto bits = static_cast<uint16_t>((u + random16) >> 16);
    return (bits & 0x7f80u) == 0x7f80u ? static_cast<uint16_t>(bits - 1) : bits;
}

}  // namespace tutti
