// kernels/cpu/isa/activation.h: GELU, SwiGLU and GEGLU of vectors, with their gradients. T is the type that the
// result is rounded to next, as in simd.h.
#pragma once

#include "tutti/kernels/cpu/isa/simd.h"

namespace tutti::kernels::TUTTI_ISA {

// gelu(x) = x/2 (1 + tanh a) = x s, s = sigmoid(2a) = 1 / (1 + 2^t), a = sqrt(2/pi) (x + 0.044715 x^3): 1 + tanh would
// cancel for x < 0. t = -2a log2(e) = x (kLinear + kCubic x^2).
inline constexpr double kTwiceSqrt2OverPi = 1.59576912160573071, kGeluCubic = 0.044715, kLog2OfE = 1.44269504088896341;
inline constexpr auto kLinear = static_cast<float>(-kTwiceSqrt2OverPi * kLog2OfE);
inline constexpr auto kCubic = static_cast<float>(-kTwiceSqrt2OverPi * kLog2OfE * kGeluCubic);
inline constexpr float kFar = 10;  // |t| is 126 here, and s or 1 - s the smallest normal float, in effect 0

template <class T>
[[gnu::always_inline]] inline Vec gelu(Vec x) {
    const Vec near = clamp(x, kFar);
    return x * sigmoid_exp2<T>(near * fma(near * near, broadcast(kCubic), broadcast(kLinear))).value;
}

// gelu' = s + x s (1 - s) slope, slope = d(2a)/dx = kSlope + kSlopeSquare x^2
inline constexpr auto kSlope = static_cast<float>(kTwiceSqrt2OverPi);
inline constexpr auto kSlopeSquare = static_cast<float>(3 * kTwiceSqrt2OverPi * kGeluCubic);

// dy gelu'(x), to the precision of f32 for any type: the two terms cancel at x = -0.75.
[[gnu::always_inline]] inline Vec gelu_gradient(Vec dy, Vec x) {
    const Vec near = clamp(x, kFar), square = near * near;
    const Sigmoid s = sigmoid_exp2<float>(near * fma(square, broadcast(kCubic), broadcast(kLinear)));
    const Vec slope = near * fma(square, broadcast(kSlopeSquare), broadcast(kSlope));
    return dy * fma(s.value * s.complement, slope, s.value);
}

// min(x, limit) and u between -limit and limit; NaN stays NaN.
struct Clamped {
    Vec gate, up;
};
[[gnu::always_inline]] inline Clamped clamped(Vec x, Vec u, Vec limit) {
    return {min(limit, x), min(limit, max(zero() - limit, u))};
}

[[gnu::always_inline]] inline Vec zero_where(Mask m, Vec x) { return select(m, zero(), x); }

// `limit`: of Gate::clamped.
template <Gate::Kind g, class T>
[[gnu::always_inline]] inline Vec swiglu(Vec gate, Vec up, Vec limit) {
    if constexpr (g == Gate::gelu) return gelu<T>(gate) * up;
    if constexpr (g == Gate::silu) return gate * up * sigmoid<T>(gate).value;
    if constexpr (g == Gate::sigmoid) return up * sigmoid<T>(gate).value;
    if constexpr (g == Gate::relu) return max(zero(), gate) * up;
    if constexpr (g == Gate::clamped) {
        const Clamped x = clamped(gate, up, limit);
        return x.gate * (x.up + broadcast(1.0f)) * sigmoid<T>(x.gate * broadcast(kClampedSlope)).value;
    }
}

struct SwigluGradient {
    Vec gate, up;
};
// silu'(g) = s (1 + g (1 - s)); dgate = dy up silu'(g), dup = dy silu(g); with gelu likewise. To the precision of f32
// for any type: the two terms cancel at g = -1.28. Of the clamped unit the gradient to a clamped value is 0.
template <Gate::Kind g>
[[gnu::always_inline]] inline SwigluGradient swiglu_gradient(Vec dy, Vec gate, Vec up, Vec limit) {
    if constexpr (g == Gate::gelu) return {gelu_gradient(dy * up, gate), dy * gelu<float>(gate)};
    if constexpr (g == Gate::silu) {
        const Sigmoid s = sigmoid<float>(gate);
        const Vec ds = dy * s.value;
        return {up * ds * fma(gate, s.complement, broadcast(1.0f)), gate * ds};
    }
    if constexpr (g == Gate::sigmoid) {
        const Sigmoid s = sigmoid<float>(gate);
        const Vec ds = dy * s.value;
        return {up * ds * s.complement, ds};
    }
    if constexpr (g == Gate::relu) return {zero_unless(gate > zero(), dy * up), dy * max(zero(), gate)};
    if constexpr (g == Gate::clamped) {
        const Clamped x = clamped(gate, up, limit);
        const Vec t = x.gate * broadcast(kClampedSlope);
        const Sigmoid s = sigmoid<float>(t);
        const Vec ds = dy * s.value;
        return {zero_where(gate >= limit, (x.up + broadcast(1.0f)) * ds * fma(t, s.complement, broadcast(1.0f))),
                zero_where(max(up, zero() - up) >= limit, x.gate * ds)};
    }
}

}  // namespace tutti::kernels::TUTTI_ISA
