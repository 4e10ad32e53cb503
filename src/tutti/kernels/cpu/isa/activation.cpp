// kernels/cpu/isa/activation.cpp: ReLU, GELU and SwiGLU with their gradients, one pass over memory each.
#include "tutti/kernels/cpu/isa/loops.h"
#include "tutti/kernels/cpu/isa/parts.h"

namespace tutti::kernels::TUTTI_ISA {
namespace {

// y = function(x), for results of type T
template <class Function>
void map(const Stream& stream, View x, View y, Function function) {
    with_type(y.dtype, [&](auto type) {
        using T = typename decltype(type)::type;
        const T* in = x.as<T>();
        T* out = y.as<T>();
        for_vectors_parallel(stream, numel(y), [=](int64_t i, auto part) {
            store_flushed(function(load(in + i, part), type), out + i, part);
        });
    });
}

// y = function(a, b), likewise
template <class Function>
void map(const Stream& stream, View a, View b, View y, Function function) {
    with_type(y.dtype, [&](auto type) {
        using T = typename decltype(type)::type;
        const T *first = a.as<T>(), *second = b.as<T>();
        T* out = y.as<T>();
        for_vectors_parallel(stream, numel(y), [=](int64_t i, auto part) {
            store_flushed(function(load(first + i, part), load(second + i, part), type), out + i, part);
        });
    });
}

void relu_forward(const Stream& stream, View x, View y) {
    map(stream, x, y, [](Vec v, auto) { return max(zero(), v); });  // in this order NaN stays NaN and is noticed
}

void relu_backward(const Stream& stream, View dy, View y, View dx) {
    map(stream, dy, y, dx, [](Vec gradient, Vec value, auto) { return zero_unless(value > zero(), gradient); });
}

// gelu(x) = x/2 (1 + tanh a) = x s, s = sigmoid(2a) = 1 / (1 + 2^t), a = sqrt(2/pi) (x + 0.044715 x^3): 1 + tanh would
// cancel for x < 0. t = -2a log2(e) = x (kLinear + kCubic x^2).
constexpr double kTwiceSqrt2OverPi = 1.59576912160573071, kGeluCubic = 0.044715, kLog2OfE = 1.44269504088896341;
constexpr auto kLinear = static_cast<float>(-kTwiceSqrt2OverPi * kLog2OfE);
constexpr auto kCubic = static_cast<float>(-kTwiceSqrt2OverPi * kLog2OfE * kGeluCubic);
constexpr float kFar = 10;  // |t| is 126 here, and s or 1 - s the least normal float: 0 for all that matters

void gelu_forward(const Stream& stream, View x, View y) {
    map(stream, x, y, []<class T>(Vec v, Type<T>) {
        const Vec near = clamp(v, kFar);
        return v * sigmoid_exp2<T>(near * fma(near * near, broadcast(kCubic), broadcast(kLinear))).value;
    });
}

// gelu' = s + x s (1 - s) slope, slope = d(2a)/dx = kSlope + kSlopeSquare x^2
constexpr auto kSlope = static_cast<float>(kTwiceSqrt2OverPi);
constexpr auto kSlopeSquare = static_cast<float>(3 * kTwiceSqrt2OverPi * kGeluCubic);

// In the digits of f32 for any type: the two terms cancel at x = -0.75.
void gelu_backward(const Stream& stream, View dy, View x, View dx) {
    map(stream, dy, x, dx, [](Vec gradient, Vec v, auto) {
        const Vec near = clamp(v, kFar), square = near * near;
        const Sigmoid s = sigmoid_exp2<float>(near * fma(square, broadcast(kCubic), broadcast(kLinear)));
        const Vec slope = near * fma(square, broadcast(kSlopeSquare), broadcast(kSlope));
        return gradient * fma(s.value * s.complement, slope, s.value);
    });
}

void swiglu_forward(const Stream& stream, View gate, View up, View y) {
    map(stream, gate, up, y, []<class T>(Vec g, Vec u, Type<T>) { return g * u * sigmoid<T>(g).value; });
}

// silu'(g) = s (1 + g (1 - s)); dgate = dy up silu'(g), dup = dy silu(g). In the digits of f32 for any type: the two
// terms cancel at g = -1.28.
void swiglu_backward(const Stream& stream, View dy, View gate, View up, View dgate, View dup) {
    with_type(dy.dtype, [&](auto type) {
        using T = typename decltype(type)::type;
        const T *gradients = dy.as<T>(), *gates = gate.as<T>(), *ups = up.as<T>();
        T *gate_gradients = dgate.as<T>(), *up_gradients = dup.as<T>();
        for_vectors_parallel(stream, numel(dy), [=](int64_t i, auto part) {
            const Vec d = load(gradients + i, part), g = load(gates + i, part), u = load(ups + i, part);
            const Sigmoid s = sigmoid<float>(g);
            const Vec ds = d * s.value;
            store_flushed(u * ds * fma(g, s.complement, broadcast(1.0f)), gate_gradients + i, part);
            store_flushed(g * ds, up_gradients + i, part);
        });
    });
}

}  // namespace

void fill_activation(KernelTable& table) {
    table.relu_forward = relu_forward;
    table.relu_backward = relu_backward;
    table.gelu_forward = gelu_forward;
    table.gelu_backward = gelu_backward;
    table.swiglu_forward = swiglu_forward;
    table.swiglu_backward = swiglu_backward;
}

}  // namespace tutti::kernels::TUTTI_ISA
