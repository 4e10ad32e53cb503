#include "tutti/base/dtype.h"

#include <array>
#include <cmath>
#include <utility>

namespace tutti {

namespace {
constexpr std::array<std::pair<DType, std::string_view>, 8> kNames = {{{DType::f32, "f32"},
                                                                       {DType::bf16, "bf16"},
                                                                       {DType::f16, "f16"},
                                                                       {DType::f64, "f64"},
                                                                       {DType::i32, "i32"},
                                                                       {DType::i64, "i64"},
                                                                       {DType::u16, "u16"},
                                                                       {DType::u8, "u8"}}};
}

std::string_view name_of(DType t) {
    for (const auto& [type, name] : kNames)
        if (type == t) return name;
    return "?";
}

std::optional<DType> dtype_from(std::string_view name) {
    for (const auto& [type, text] : kNames)
        if (text == name) return type;
    return std::nullopt;
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
