// kernels/cpu/isa/simd.h: the functions of vectors that the kernels share, on top of vec_avx2.h or vec_avx512.h.
// Errors are measured against double over dense sweeps in cpu/cpu_test.cpp.
#pragma once

#include "tutti/kernels/cpu/isa.h"

namespace tutti::kernels::TUTTI_ISA {

inline constexpr float kLog2E = 1.44269502f, kLn2 = 0.693147182f;

// T, here and below, is the type that the result is rounded to next: float or f16; or bf16, whose rounding error of
// 2^-9 hides a relative error of 2^-14, which takes half of the instructions.
template <class T>
inline constexpr bool kHidesErrors = __is_same(T, bf16);

// 2^f for |f| <= 1/2: minimax polynomials (Remez), 2^-29 and 2^-13.7 relative.
template <class T>
[[gnu::always_inline]] inline Vec exp2_fraction(Vec f) {
    if constexpr (!kHidesErrors<T>) {
        Vec p = fma(broadcast(1.53458124e-4f), f, broadcast(1.33999309e-3f));
        p = fma(p, f, broadcast(9.61848907e-3f));
        p = fma(p, f, broadcast(5.55032864e-2f));
        p = fma(p, f, broadcast(2.40226462e-1f));
        p = fma(p, f, broadcast(6.93147182e-1f));
        return fma(p, f, broadcast(1.0f));
    } else {
        const Vec p = fma(broadcast(5.51716685e-2f), f, broadcast(2.42611125e-1f));
        return fma(fma(p, f, broadcast(6.93260968e-1f)), f, broadcast(9.99928057e-1f));
    }
}

// 2^t for |t| <= 126.
template <class T>
[[gnu::always_inline]] inline Vec exp2_normal(Vec t) {
    const Vec n = round(t);
    return times_power_of_two(exp2_fraction<T>(t - n), n);
}

// e^x for x < 90, 1 ulp. Below ln of the smallest normal float the result is 0: no subnormal ever enters a product
// (each would cost over a hundred cycles on some machines, and masked scores yield many). NaN stays NaN.
[[gnu::always_inline]] inline Vec exp_bounded(Vec x) {
    // x log2(e) = n + f; log2(e) in two parts (Cody and Waite), since one float of it is off by 2^-26, an error that x
    // would multiply.
    const Vec log2e = broadcast(kLog2E);
    const Vec n = round(x * log2e);
    const Vec f = fma(x, broadcast(1.92596299e-8f), fma(x, log2e, zero() - n));
    return times_power_of_two(not_less(x, broadcast(-87.33654f)), exp2_fraction<float>(f), n);
}

// The same for any x; overflow gives infinity.
[[gnu::always_inline]] inline Vec exp(Vec x) { return exp_bounded(min(broadcast(89.0f), x)); }

// 2^x for x < 128, 2 ulp; 0 below the smallest normal float, for the reason above. NaN stays NaN.
[[gnu::always_inline]] inline Vec exp2_bounded(Vec x) {
    const Vec n = round(x);
    return times_power_of_two(not_less(x, broadcast(-126.0f)), exp2_fraction<float>(x - n), n);
}

// NaN stays NaN.
[[gnu::always_inline]] inline Vec clamp(Vec x, float most) { return min(broadcast(most), max(broadcast(-most), x)); }

// s and 1 - s, computed without cancellation.
struct Sigmoid {
    Vec value, complement;
};

// s = 1 / (1 + 2^t) for |t| <= 126
template <class T>
[[gnu::always_inline]] inline Sigmoid sigmoid_exp2(Vec t) {
    const Vec e = exp2_normal<T>(t), sum = broadcast(1.0f) + e;
    const Vec s = kHidesErrors<T> ? rough_reciprocal(sum) : reciprocal(sum);
    return {s, e * s};
}

// s = 1 / (1 + e^-x). Where e^x is below the smallest normal float: 0, and for bf16 that float.
template <class T>
[[gnu::always_inline]] inline Sigmoid sigmoid(Vec x) {
    if constexpr (kHidesErrors<T>) return sigmoid_exp2<T>(clamp(x * broadcast(-kLog2E), 126));
    constexpr float kLeast = -87.33654f;
    const Vec e = exp_bounded(zero() - max(broadcast(kLeast), x)), s = reciprocal(broadcast(1.0f) + e);
    return {zero_unless(not_less(x, broadcast(kLeast)), s), e * s};
}

// tanh(x), 2^-22 relative: near 0 the polynomial of Cephes' tanhf, elsewhere s - (1 - s) of s = sigmoid(2x), which
// would cancel there. NaN stays NaN.
[[gnu::always_inline]] inline Vec tanh(Vec x) {
    const Vec square = x * x;
    Vec p = fma(broadcast(-5.70498872745e-3f), square, broadcast(2.06390887954e-2f));
    p = fma(p, square, broadcast(-5.37397155531e-2f));
    p = fma(p, square, broadcast(1.33314422036e-1f));
    p = fma(p, square, broadcast(-3.33332819422e-1f));
    const Sigmoid s = sigmoid<float>(x + x);
    return select(minus_abs(x) >= broadcast(-0.625f), fma(p * square, x, x), s.value - s.complement);
}

}  // namespace tutti::kernels::TUTTI_ISA
