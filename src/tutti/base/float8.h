// base/float8.h: 8-bit floating point with exact conversions, and the scales of tensors that are stored in it.
//
// E4M3 (1 sign, 4 exponent, 3 fraction bits, bias 7) has no infinity: largest 448, least 2^-9, NaN 0x7f and 0xff. E5M2
// (bias 15): largest 57344, least 2^-16, infinity 0x7c, NaN above (Micikevicius et al., FP8 Formats for Deep Learning,
// arXiv:2209.05433). E8M0 is a power of two, 2^(code - 127), NaN 0xff: a scale (OCP Microscaling Formats 1.0).
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "tutti/base/dtype.h"

namespace tutti {

// A format with sign and fraction: E4M3 or E5M2.
struct Float8 {
    int fraction_bits, bias;
    uint32_t largest_code;
    float largest;
};
inline constexpr Float8 kE4m3{3, 7, 0x7e, 448};
inline constexpr Float8 kE5m2{2, 15, 0x7b, 57344};
// Half of the least number: magnitudes up to it become 0.
constexpr float largest_flushed(const Float8& format) {
    return std::bit_cast<float>(static_cast<uint32_t>(127 - format.bias - format.fraction_bits) << 23);
}
constexpr const Float8& float8_of(DType t) { return t == DType::e5m2 ? kE5m2 : kE4m3; }

// Rounds to nearest, ties to even. Magnitudes beyond the largest number, and infinities, become the largest number;
// every NaN becomes 0x7f; subnormals and signed zeros are kept. The same as CUDA's saturating casts.
constexpr uint8_t float8_code(float x, const Float8& format) {
    const uint32_t u = std::bit_cast<uint32_t>(x), magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0x7f;
    const int dropped = 23 - format.fraction_bits;  // fraction bits
    const auto exponent_gap = static_cast<uint32_t>(127 - format.bias);
    uint32_t code = 0;
    if (magnitude < (exponent_gap + 1) << 23) {
        // Adding a number whose ulp is the least number rounds to multiples of the least number.
        const uint32_t ulp_of_least = (exponent_gap + 1 + static_cast<uint32_t>(dropped)) << 23;
        const float sum = std::bit_cast<float>(magnitude) + std::bit_cast<float>(ulp_of_least);
        code = std::bit_cast<uint32_t>(sum) - ulp_of_least;
    } else {
        const uint32_t rounded = magnitude + (1u << (dropped - 1)) - 1 + ((magnitude >> dropped) & 1u);
        code = (rounded >> dropped) - (exponent_gap << format.fraction_bits);
        if (code > format.largest_code) code = format.largest_code;
    }
    return static_cast<uint8_t>(code | (u >> 24 & 0x80u));
}

constexpr float float8_value(uint8_t code, const Float8& format) {
    const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24, magnitude = code & 0x7fu;
    const bool finite = magnitude <= format.largest_code;
    if (!finite && format.bias == kE5m2.bias && magnitude == 0x7c) return std::bit_cast<float>(sign | 0x7f800000u);
    if (!finite) return std::numeric_limits<float>::quiet_NaN();
    const int dropped = 23 - format.fraction_bits;
    const auto exponent_gap = static_cast<uint32_t>(127 - format.bias);
    if (magnitude >> format.fraction_bits == 0) {  // subnormal: a multiple of the least number
        const float least =
            std::bit_cast<float>((exponent_gap + 1 - static_cast<uint32_t>(format.fraction_bits)) << 23);
        const float value = static_cast<float>(magnitude) * least;
        return sign != 0 ? -value : value;
    }
    return std::bit_cast<float>(sign | ((magnitude << dropped) + (exponent_gap << 23)));
}

constexpr float e8m0_value(uint8_t code) {
    if (code == 0xff) return std::numeric_limits<float>::quiet_NaN();
    return std::bit_cast<float>(code == 0 ? 0x00400000u : static_cast<uint32_t>(code) << 23);
}

// The code of the smallest power of two >= v, for v >= 0; 0xff for infinity and NaN.
constexpr uint8_t e8m0_code_above(float v) {
    const uint32_t u = std::bit_cast<uint32_t>(v), exponent = u >> 23 & 0xffu, fraction = u & 0x7fffffu;
    if (exponent == 0xff) return 0xff;
    if (exponent == 0) return fraction > 0x400000u ? 1 : 0;
    return static_cast<uint8_t>(exponent < 0xfe && fraction != 0 ? exponent + 1 : exponent);
}

// The factor by which a group with the largest magnitude `amax` is multiplied before the cast: the format's largest
// number / amax. 1 for a group of zeros or with an infinity or NaN. At most `of_type`, the largest number of the
// group's type. `power_of_two`: rounded down to a power of two.
constexpr float float8_factor(float amax, const Float8& format, float of_type, bool power_of_two) {
    if (!(amax > 0) || !(amax < std::numeric_limits<float>::infinity())) return 1;
    float factor = format.largest / amax;
    if (factor > of_type) factor = of_type;
    return power_of_two ? std::bit_cast<float>(std::bit_cast<uint32_t>(factor) & 0xff800000u) : factor;
}

// The divisor of such a group in E8M0: amax (1 / largest number), rounded up to a power of two.
constexpr uint8_t e8m0_divisor(float amax, const Float8& format) {
    return e8m0_code_above(amax * (1 / format.largest));
}
// The reciprocal of a divisor; 1 for NaN.
constexpr float e8m0_factor(uint8_t divisor) {
    return divisor == 0xff ? 1.0f : e8m0_value(static_cast<uint8_t>(254 - divisor));
}

// The largest finite number of f32, bf16 or f16.
constexpr float largest_of(DType t) {
    return t == DType::bf16  ? std::bit_cast<float>(0x7f7f0000u)
           : t == DType::f16 ? 65504.0f
                             : std::numeric_limits<float>::max();
}

}  // namespace tutti
