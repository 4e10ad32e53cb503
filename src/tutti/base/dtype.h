// base/dtype.h: the element types of tensors, with exact conversions of the 16-bit types, and the compute types of a
// run. bf16 and f16 are storage types: kernels compute in float, reference kernels in double.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string_view>

namespace tutti {

// e4m3, e5m2, e8m0: 8-bit floating point (base/float8.h).
enum class DType : uint8_t { f32, bf16, f16, f64, i32, i64, u16, u8, e4m3, e5m2, e8m0 };

constexpr int64_t size_of(DType t) {
    switch (t) {
        case DType::f64:
        case DType::i64: return 8;
        case DType::f32:
        case DType::i32: return 4;
        case DType::bf16:
        case DType::f16:
        case DType::u16: return 2;
        case DType::u8:
        case DType::e4m3:
        case DType::e5m2:
        case DType::e8m0: return 1;
    }
    return 0;
}

std::string_view name_of(DType t);                       // "bf16"
std::optional<DType> dtype_from(std::string_view name);  // the inverse of name_of
inline std::ostream& operator<<(std::ostream& out, DType t) { return out << name_of(t); }

// Rounds to nearest, ties to even; NaN stays NaN (quiet), infinities and signed zeros are kept.
constexpr uint16_t bf16_bits(float x) {
    const uint32_t u = std::bit_cast<uint32_t>(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x0040u);
    return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
constexpr float bf16_value(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// Rounds to nearest, ties to even; 65520 and above become infinity, subnormals (multiples of 2^-24) and signed zeros
// are kept, NaN stays NaN (quiet).
constexpr uint16_t f16_bits(float x) {
    const uint32_t u = std::bit_cast<uint32_t>(x), magnitude = u & 0x7fffffffu;
    const auto sign = static_cast<uint16_t>((u >> 16) & 0x8000u);
    if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
    if (magnitude < 0x38800000u) {  // below 2^-14: a unit in the last place of numbers in [1/2, 1) is 2^-24
        const uint32_t half = std::bit_cast<uint32_t>(0.5f);
        const uint32_t rounded = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f);
        return static_cast<uint16_t>(sign | (rounded - half));
    }
    const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}
constexpr float f16_value(uint16_t bits) {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16, exponent = (bits >> 10) & 0x1fu;
    const uint32_t fraction = bits & 0x3ffu;
    if (exponent == 0x1fu) return std::bit_cast<float>(sign | 0x7f800000u | (fraction << 13));
    if (exponent > 0) return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (fraction << 13));
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(static_cast<float>(fraction) * 0x1p-24f));
}

struct bf16 {
    uint16_t bits = 0;
    bf16() = default;
    explicit constexpr bf16(float x) : bits(bf16_bits(x)) {}
    explicit constexpr operator float() const { return bf16_value(bits); }
};

struct f16 {
    uint16_t bits = 0;
    f16() = default;
    explicit constexpr f16(float x) : bits(f16_bits(x)) {}
    explicit constexpr operator float() const { return f16_value(bits); }
};

// The DType of the pointer's elements.
constexpr DType dtype_at(const float*) { return DType::f32; }
constexpr DType dtype_at(const double*) { return DType::f64; }
constexpr DType dtype_at(const bf16*) { return DType::bf16; }
constexpr DType dtype_at(const f16*) { return DType::f16; }
constexpr DType dtype_at(const int32_t*) { return DType::i32; }
constexpr DType dtype_at(const int64_t*) { return DType::i64; }
constexpr DType dtype_at(const uint16_t*) { return DType::u16; }
constexpr DType dtype_at(const uint8_t*) { return DType::u8; }
template <class T>
constexpr DType dtype_of() {
    return dtype_at(static_cast<const T*>(nullptr));
}

// The arithmetic of forward and backward (precision.compute). tf32: f32, but the factors of matrix products may be
// rounded to 10 fraction bits, as by GPUs since sm_80.
enum class ComputeType : uint8_t { f32, tf32, bf16, f16 };
inline constexpr ComputeType kComputeTypes[] = {ComputeType::f32, ComputeType::tf32, ComputeType::bf16,
                                                ComputeType::f16};

// The type in which weights and activations are stored.
constexpr DType storage_of(ComputeType a) {
    switch (a) {
        case ComputeType::f32:
        case ComputeType::tf32: break;
        case ComputeType::bf16: return DType::bf16;
        case ComputeType::f16: return DType::f16;
    }
    return DType::f32;
}

constexpr bool is_compute_dtype(DType t) {
    for (const ComputeType a : kComputeTypes)
        if (storage_of(a) == t) return true;
    return false;
}

constexpr std::string_view name_of(ComputeType a) {
    switch (a) {
        case ComputeType::f32: return "f32";
        case ComputeType::tf32: return "tf32";
        case ComputeType::bf16: return "bf16";
        case ComputeType::f16: return "f16";
    }
    return "";
}
inline std::ostream& operator<<(std::ostream& out, ComputeType a) { return out << name_of(a); }

// The inverse of name_of.
constexpr std::optional<ComputeType> compute_type_from(std::string_view name) {
    for (const ComputeType a : kComputeTypes)
        if (name == name_of(a)) return a;
    return std::nullopt;
}

}  // namespace tutti
