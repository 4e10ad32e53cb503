#include "tutti/base/dtype.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace tutti {

namespace {
constexpr std::array<std::string_view, 11> kNames = {"f32", "bf16", "f16",  "f64",  "i32", "i64",
                                                     "u16", "u8",   "e4m3", "e5m2", "e8m0"};  // by DType
}

std::string_view name_of(DType t) { return kNames.at(static_cast<size_t>(t)); }

std::optional<DType> dtype_from(std::string_view name) {
    const auto found = std::find(kNames.begin(), kNames.end(), name);
    if (found == kNames.end()) return std::nullopt;
    return static_cast<DType>(found - kNames.begin());
}

uint16_t f16_bits(float x) {
    const uint32_t u = std::bit_cast<uint32_t>(x);
    const uint16_t sign = static_cast<uint16_t>((u >> 16) & 0x8000u);
    const uint32_t magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and above round to infinity
    if (magnitude < 0x38800000u) {                                               // below 2^-14: a subnormal of 2^-24
        const float scaled = std::bit_cast<float>(magnitude) * 0x1p24f;          // exact: a power of two
        return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyint(scaled)));
    }
    const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

float f16_value(uint16_t bits) {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
    const uint32_t exponent = (bits >> 10) & 0x1fu;
    const uint32_t mantissa = bits & 0x3ffu;
    if (exponent == 0x1fu) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
    if (exponent == 0) {
        const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

}  // namespace tutti
