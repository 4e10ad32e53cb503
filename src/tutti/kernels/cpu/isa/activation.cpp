// kernels/cpu/isa/activation.cpp: ReLU, GELU and SwiGLU with their gradients, one pass over memory each.
#include "tutti/kernels/cpu/isa/activation.h"

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

void gelu_forward(const Stream& stream, View x, View y) {
    map(stream, x, y, []<class T>(Vec v, Type<T>) { return gelu<T>(v); });
}

void gelu_backward(const Stream& stream, View dy, View x, View dx) {
    map(stream, dy, x, dx, [](Vec gradient, Vec v, auto) { return gelu_gradient(gradient, v); });
}

void swiglu_forward(const Stream& stream, View gate, View up, View y) {
    map(stream, gate, up, y, []<class T>(Vec g, Vec u, Type<T>) { return swiglu<T>(g, u); });
}

void swiglu_backward(const Stream& stream, View dy, View gate, View up, View dgate, View dup) {
    with_type(dy.dtype, [&](auto type) {
        using T = typename decltype(type)::type;
        const T *gradients = dy.as<T>(), *gates = gate.as<T>(), *ups = up.as<T>();
        T *gate_gradients = dgate.as<T>(), *up_gradients = dup.as<T>();
        for_vectors_parallel(stream, numel(dy), [=](int64_t i, auto part) {
            const SwigluGradient d =
                swiglu_gradient(load(gradients + i, part), load(gates + i, part), load(ups + i, part));
            store_flushed(d.gate, gate_gradients + i, part);
            store_flushed(d.up, up_gradients + i, part);
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
