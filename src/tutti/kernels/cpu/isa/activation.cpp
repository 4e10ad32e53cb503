// kernels/cpu/isa/activation.cpp: ReLU, GELU and SwiGLU with their gradients, one pass over memory each.
#include "tutti/kernels/cpu/fill.h"
#include "tutti/kernels/cpu/isa/loops.h"

namespace tutti::kernels::TUTTI_ISA {
namespace {

// y = function(x)
template <class Function>
void map(const Stream& stream, View x, View y, Function function) {
    with_type(y.dtype, [&](auto type) {
        using T = typename decltype(type)::type;
        const T* in = x.as<T>();
        T* out = y.as<T>();
        for_vectors_parallel(stream, numel(y),
                             [=](int64_t i, auto part) { store(function(load(in + i, part)), out + i, part); });
    });
}

// y = function(a, b)
template <class Function>
void map(const Stream& stream, View a, View b, View y, Function function) {
    with_type(y.dtype, [&](auto type) {
        using T = typename decltype(type)::type;
        const T *first = a.as<T>(), *second = b.as<T>();
        T* out = y.as<T>();
        for_vectors_parallel(stream, numel(y), [=](int64_t i, auto part) {
            store(function(load(first + i, part), load(second + i, part)), out + i, part);
        });
    });
}

void relu_forward(const Stream& stream, View x, View y) {
    map(stream, x, y, [](Vec v) { return max(zero(), v); });  // in this order NaN stays NaN and is noticed
}

void relu_backward(const Stream& stream, View dy, View y, View dx) {
    map(stream, dy, y, dx, [](Vec gradient, Vec value) { return zero_unless(value > zero(), gradient); });
}

// gelu(x) = x/2 (1 + tanh a) = x sigmoid(2a), a = sqrt(2/pi) (x + 0.044715 x^3): 1 + tanh would cancel for x < 0.
struct Gelu {
    Sigmoid s;  // of 2a
    Vec slope;  // of 2a
};
[[gnu::always_inline]] inline Gelu gelu_parts(Vec x) {
    constexpr float kTwiceSqrt2OverPi = 1.59576912160573071f, kCubic = 0.044715f;
    // Beyond 32 sigmoid is 0 or 1 long since, and x^2 may not overflow: infinity times 0 would be NaN.
    const Vec bounded = min(broadcast(32.0f), max(broadcast(-32.0f), x));
    const Vec square = bounded * bounded;
    const Vec factor = broadcast(kTwiceSqrt2OverPi);
    const Vec argument = bounded * fma(square, broadcast(kTwiceSqrt2OverPi * kCubic), factor);
    return {sigmoid(argument), fma(square, broadcast(3 * kTwiceSqrt2OverPi * kCubic), factor)};
}

void gelu_forward(const Stream& stream, View x, View y) {
    map(stream, x, y, [](Vec v) { return v * gelu_parts(v).s.value; });
}

// gelu' = s + x s (1 - s) slope
void gelu_backward(const Stream& stream, View dy, View x, View dx) {
    map(stream, dy, x, dx, [](Vec gradient, Vec v) {
        const Gelu g = gelu_parts(v);
        const Vec bell = g.s.value * g.s.complement;
        return gradient * fma(bell * g.slope, v, g.s.value);
    });
}

void swiglu_forward(const Stream& stream, View gate, View up, View y) {
    map(stream, gate, up, y, [](Vec g, Vec u) { return g * sigmoid(g).value * u; });
}

// silu'(g) = s (1 + g (1 - s)); dgate = dy up silu'(g), dup = dy silu(g)
void swiglu_backward(const Stream& stream, View dy, View gate, View up, View dgate, View dup) {
    with_type(dy.dtype, [&](auto type) {
        using T = typename decltype(type)::type;
        const T *gradients = dy.as<T>(), *gates = gate.as<T>(), *ups = up.as<T>();
        T *gate_gradients = dgate.as<T>(), *up_gradients = dup.as<T>();
        for_vectors_parallel(stream, numel(dy), [=](int64_t i, auto part) {
            const Vec d = load(gradients + i, part), g = load(gates + i, part), u = load(ups + i, part);
            const Sigmoid s = sigmoid(g);
            const Vec slope = s.value * fma(g, s.complement, broadcast(1.0f));
            store(d * u * slope, gate_gradients + i, part);
            store(d * g * s.value, up_gradients + i, part);
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
