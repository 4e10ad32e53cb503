// kernels/cpu/isa/simd.h: the functions of vectors that the kernels share, on top of vec_avx2.h or vec_avx512.h.
// Errors are measured against double over dense sweeps in cpu/cpu_test.cpp.
#pragma once

#include "tutti/kernels/cpu/isa.h"

namespace tutti::kernels::TUTTI_ISA {

// e^x for x < 90, 1 ulp. Below ln of the least normal float the result is 0: no subnormal ever enters a product (which
// costs over a hundred cycles on some machines, and masked scores are full of them). NaN stays.
[[gnu::always_inline]] inline Vec exp_bounded(Vec x) {
    // x = n ln2 + r with |r| <= ln2 / 2; ln2 in two parts (Cody and Waite) so that r is exact to float.
    const Vec least = broadcast(-87.33654f);
    const Vec bounded = max(least, x);
    const Vec n = round(bounded * broadcast(1.44269504088896341f));
    const Vec r = fma_negative(n, broadcast(-2.12194440e-4f), fma_negative(n, broadcast(0.693359375f), bounded));
    // Polynomial of Cephes' expf (Moshier).
    Vec p = broadcast(1.9875691500e-4f);
    p = fma(p, r, broadcast(1.3981999507e-3f));
    p = fma(p, r, broadcast(8.3334519073e-3f));
    p = fma(p, r, broadcast(4.1665795894e-2f));
    p = fma(p, r, broadcast(1.6666665459e-1f));
    p = fma(p, r, broadcast(5.0000001201e-1f));
    const Vec power = fma(p * r, r, r) + broadcast(1.0f);
    return times_power_of_two(not_less(x, least), power, n);
}

// The same for any x; overflow gives infinity.
[[gnu::always_inline]] inline Vec exp(Vec x) { return exp_bounded(min(broadcast(89.0f), x)); }

// 2^x for x < 128, 2 ulp; 0 below the least normal float, for the reason above. NaN stays. Two thirds of exp's work.
[[gnu::always_inline]] inline Vec exp2_bounded(Vec x) {
    const Vec n = round(x), r = x - n;  // exact
    // The polynomial 1 + r q(r) of degree 5 with the least relative error for |r| <= 1/2: 9e-8.
    Vec p = broadcast(0x1.5bb986p-10f);
    p = fma(p, r, broadcast(0x1.3cea82p-7f));
    p = fma(p, r, broadcast(0x1.c6b754p-5f));
    p = fma(p, r, broadcast(0x1.ebf9bcp-3f));
    p = fma(p, r, broadcast(0x1.62e42ap-1f));
    p = fma(p, r, broadcast(1.0f));
    return times_power_of_two(not_less(x, broadcast(-126.0f)), p, n);
}

// s = 1 / (1 + e^-x) and 1 - s, both to a few ulp: from e^-|x|, which neither overflows nor cancels.
struct Sigmoid {
    Vec value, complement;
};
[[gnu::always_inline]] inline Sigmoid sigmoid(Vec x) {
    const Vec e = exp_bounded(minus_abs(x));
    const Vec large = broadcast(1.0f) / (broadcast(1.0f) + e);
    const Vec small = e * large;
    const Mask negative = x < zero();
    return {select(negative, small, large), select(negative, large, small)};
}

}  // namespace tutti::kernels::TUTTI_ISA
