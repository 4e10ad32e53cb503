// kernels/reference/element.h: reads and writes one element of a view of any type as a double. Every reference kernel
// accepts f64 views, so that tests can differentiate the kernel numerically.
#pragma once

#include <bit>
#include <cmath>
#include <limits>

#include "tutti/tensor/view.h"

namespace tutti::kernels::reference {

inline double load(const View& x, int64_t offset) {
    switch (x.dtype) {
        case DType::f64: return x.as<const double>()[offset];
        case DType::f32: return x.as<const float>()[offset];
        case DType::bf16: return bf16_value(x.as<const uint16_t>()[offset]);
        case DType::f16: return f16_value(x.as<const uint16_t>()[offset]);
        default: return std::numeric_limits<double>::quiet_NaN();  // not a float type: ops/ has refused it
    }
}

// An index, i32 or i64: a token number, a position or a row number.
inline int64_t load_index(const View& x, int64_t offset) {
    return x.dtype == DType::i64 ? x.as<const int64_t>()[offset] : x.as<const int32_t>()[offset];
}

// The intermediate float in a conversion from double to a 16-bit type. Rounding to nearest twice can be wrong by one
// unit (the first step makes a tie for the second); truncating, with the last bit set when the result is inexact
// ("round to odd", Boldo and Melquiond 2008), keeps the second step exact.
inline float round_to_odd(double x) {
    const float nearest = static_cast<float>(x);
    if (std::isnan(nearest) || std::isinf(nearest) || static_cast<double>(nearest) == x) return nearest;
    uint32_t bits = std::bit_cast<uint32_t>(nearest);
    if (std::abs(static_cast<double>(nearest)) > std::abs(x)) --bits;  // towards zero
    return std::bit_cast<float>(bits | 1u);
}

// Rounds once, to nearest even.
inline void store(const View& y, int64_t offset, double value) {
    switch (y.dtype) {
        case DType::f64: y.as<double>()[offset] = value; break;
        case DType::f32: y.as<float>()[offset] = static_cast<float>(value); break;
        case DType::bf16: y.as<uint16_t>()[offset] = bf16_bits(round_to_odd(value)); break;
        case DType::f16: y.as<uint16_t>()[offset] = f16_bits(round_to_odd(value)); break;
        default: break;
    }
}

// Offset of an element by its indices and the strides of the view.
inline int64_t offset(const View& x, int64_t i, int64_t j) { return i * x.stride(0) + j * x.stride(1); }
inline int64_t offset(const View& x, int64_t i, int64_t j, int64_t k) { return offset(x, i, j) + k * x.stride(2); }
inline int64_t offset(const View& x, int64_t i, int64_t j, int64_t k, int64_t l) {
    return offset(x, i, j, k) + l * x.stride(3);
}

}  // namespace tutti::kernels::reference
