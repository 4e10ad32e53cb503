// kernels/cpu/isa/elementwise.cpp: fill, cast, copy, add, accumulate, scale; ReLU, GELU and SwiGLU with their
// gradients. Each is one pass over memory, which limits all of them.
#include "tutti/kernels/cpu/isa/activation.h"
#include "tutti/kernels/cpu/isa/loops.h"
#include "tutti/kernels/cpu/isa/parts.h"

namespace tutti::kernels::TUTTI_ISA {
namespace {

template <class T>
void fill_whole(const Stream& stream, View y, T value) {
    T* out = y.as<T>();
    parallel_for(stream, numel(y), kGrain, [=](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) out[i] = value;
    });
}

template <class T>
void fill_vectors(const Stream& stream, View y, float value) {
    T* out = y.as<T>();
    const Vec v = broadcast(value);
    for_vectors_parallel(stream, numel(y), [=](int64_t i, auto part) { store(v, out + i, part); });
}

void fill(const Stream& stream, View y, float value) {
    switch (y.dtype) {
        case DType::f32: return fill_vectors<float>(stream, y, value);
        case DType::bf16: return fill_vectors<bf16>(stream, y, value);
        case DType::f16: return fill_vectors<f16>(stream, y, value);
        case DType::f64: return fill_whole(stream, y, static_cast<double>(value));
        case DType::i32: return fill_whole(stream, y, static_cast<int32_t>(value));
        case DType::i64: return fill_whole(stream, y, static_cast<int64_t>(value));
        case DType::u16: return fill_whole(stream, y, static_cast<uint16_t>(value));
        case DType::u8: return fill_whole(stream, y, static_cast<uint8_t>(value));
        case DType::e4m3:
        case DType::e5m2:
        case DType::e8m0: return;  // quantize() writes codes
    }
}

void copy_whole(const Stream& stream, View x, View y) {
    const char* in = x.as<char>();
    char* out = y.as<char>();
    const int64_t bytes = numel(x) * size_of(x.dtype);
    parallel_for(stream, bytes, kGrain * 4, [=](int64_t begin, int64_t end) {
        __builtin_memcpy(out + begin, in + begin, static_cast<size_t>(end - begin));
    });
}

template <class X, class Y>
void convert(const Stream& stream, View x, View y) {
    const X* in = x.as<X>();
    Y* out = y.as<Y>();
    for_vectors_parallel(stream, numel(x), [=](int64_t i, auto part) { store(load(in + i, part), out + i, part); });
}

template <class X>
void cast_from(const Stream& stream, View x, View y) {
    switch (y.dtype) {
        case DType::bf16: return convert<X, bf16>(stream, x, y);
        case DType::f16: return convert<X, f16>(stream, x, y);
        default: return convert<X, float>(stream, x, y);
    }
}

void cast(const Stream& stream, View x, View y) {
    if (x.dtype == y.dtype) return copy_whole(stream, x, y);
    switch (x.dtype) {
        case DType::bf16: return cast_from<bf16>(stream, x, y);
        case DType::f16: return cast_from<f16>(stream, x, y);
        default: return cast_from<float>(stream, x, y);
    }
}

void copy(const Stream& stream, View x, View y) {
    const int64_t width = columns(y), element = size_of(y.dtype);
    const auto row = [](const View& view, int64_t index) {
        int64_t at = 0;
        for (int d = view.shape.rank() - 2; d >= 0; index /= size(view, d), --d)
            at += index % size(view, d) * stride(view, d);
        return at;
    };
    parallel_for(stream, rows(y), row_grain(width), [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r)
            __builtin_memcpy(y.as<char>() + row(y, r) * element, x.as<char>() + row(x, r) * element,
                             static_cast<size_t>(width * element));
    });
}

void add(const Stream& stream, View a, View b, View y) {
    with_type(y.dtype, [&]<class T>(Type<T>) {
        const T *left = a.as<T>(), *right = b.as<T>();
        T* out = y.as<T>();
        for_vectors_parallel(stream, numel(y), [=](int64_t i, auto part) {
            store(load(left + i, part) + load(right + i, part), out + i, part);
        });
    });
}

template <class X, class Y>
void accumulate_as(const Stream& stream, View x, View y) {
    const X* in = x.as<X>();
    Y* out = y.as<Y>();
    for_vectors_parallel(stream, numel(y),
                         [=](int64_t i, auto part) { store(load(out + i, part) + load(in + i, part), out + i, part); });
}

void accumulate(const Stream& stream, View x, View y) {
    with_type(x.dtype, [&]<class T>(Type<T>) {
        y.dtype == DType::f32 ? accumulate_as<T, float>(stream, x, y) : accumulate_as<T, T>(stream, x, y);
    });
}

void scale(const Stream& stream, View x, float factor) {
    with_type(x.dtype, [&](auto type) {
        auto* values = x.as<typename decltype(type)::type>();
        const Vec f = broadcast(factor);
        for_vectors_parallel(stream, numel(x),
                             [=](int64_t i, auto part) { store(load(values + i, part) * f, values + i, part); });
    });
}

// y = function(x) or function(x[0], x[1]) for views of one type T of activations; the last argument of function is
// Type<T>.
template <int K, class Function>
void map(const Stream& stream, const View (&x)[K], View y, Function function) {
    with_type(y.dtype, [&]<class T>(Type<T> type) {
        const View &left = x[0], &right = x[K - 1];
        const T *first = left.as<T>(), *last = right.as<T>();
        T* out = y.as<T>();
        for_vectors_parallel(stream, numel(y), [=](int64_t i, auto part) {
            if constexpr (K == 1)
                store_flushed(function(load(first + i, part), type), out + i, part);
            else
                store_flushed(function(load(first + i, part), load(last + i, part), type), out + i, part);
        });
    });
}

void relu_forward(const Stream& stream, View x, View y) {
    map(stream, {x}, y, [](Vec v, auto) { return max(zero(), v); });  // in this order NaN stays NaN and is noticed
}

void relu_backward(const Stream& stream, View dy, View y, View dx) {
    map(stream, {dy, y}, dx, [](Vec gradient, Vec value, auto) { return zero_unless(value > zero(), gradient); });
}

void gelu_forward(const Stream& stream, View x, View y) {
    map(stream, {x}, y, []<class T>(Vec v, Type<T>) { return gelu<T>(v); });
}

void gelu_backward(const Stream& stream, View dy, View x, View dx) {
    map(stream, {dy, x}, dx, [](Vec gradient, Vec v, auto) { return gelu_gradient(gradient, v); });
}

// body(row, width) for each row of views whose rows may be apart; contiguous views are one row.
template <int K, class Body>
void for_rows(const View (&views)[K], Body&& body) {
    bool apart = false;
    for (const View& x : views) apart = apart || (x.shape.rank() == 2 && stride(x, 0) != columns(x));
    const View& x = views[0];
    for (int64_t r = 0; r < (apart ? rows(x) : 1); ++r) body(r, apart ? columns(x) : numel(x));
}

template <class T>
T* row(const View& x, int64_t r) {
    return x.as<T>() + r * stride(x, 0);
}

// body<kind>(). The compiler names a kind that is forgotten here.
template <class Body>
void with_kind(Gate::Kind kind, const Body& body) {
    switch (kind) {
        case Gate::silu: return body.template operator()<Gate::silu>();
        case Gate::gelu: return body.template operator()<Gate::gelu>();
        case Gate::clamped: return body.template operator()<Gate::clamped>();
        case Gate::sigmoid: return body.template operator()<Gate::sigmoid>();
        case Gate::relu: return body.template operator()<Gate::relu>();
    }
}

template <Gate::Kind g>
void gated(const Stream& stream, float limit, View gate, View up, View y) {
    const Vec most = broadcast(limit);
    with_type(y.dtype, [&]<class T>(Type<T>) {
        for_rows({gate, up, y}, [&](int64_t r, int64_t width) {
            const T *gates = row<T>(gate, r), *ups = row<T>(up, r);
            T* out = row<T>(y, r);
            for_vectors_parallel(stream, width, [=](int64_t i, auto part) {
                store_flushed(swiglu<g, T>(load(gates + i, part), load(ups + i, part), most), out + i, part);
            });
        });
    });
}

void swiglu_forward(const Stream& stream, Gate g, View gate, View up, View y) {
    with_kind(g.kind, [&]<Gate::Kind kind>() { gated<kind>(stream, g.limit, gate, up, y); });
}

template <Gate::Kind g>
void gated_backward(const Stream& stream, float limit, View dy, View gate, View up, View dgate, View dup) {
    const Vec most = broadcast(limit);
    with_type(dy.dtype, [&]<class T>(Type<T>) {
        for_rows({dy, gate, up, dgate, dup}, [&](int64_t r, int64_t width) {
            const T *gradients = row<T>(dy, r), *gates = row<T>(gate, r), *ups = row<T>(up, r);
            T *gate_gradients = row<T>(dgate, r), *up_gradients = row<T>(dup, r);
            for_vectors_parallel(stream, width, [=](int64_t i, auto part) {
                const SwigluGradient d =
                    swiglu_gradient<g>(load(gradients + i, part), load(gates + i, part), load(ups + i, part), most);
                store_flushed(d.gate, gate_gradients + i, part);
                store_flushed(d.up, up_gradients + i, part);
            });
        });
    });
}

void swiglu_backward(const Stream& stream, Gate g, View dy, View gate, View up, View dgate, View dup) {
    with_kind(g.kind, [&]<Gate::Kind kind>() { gated_backward<kind>(stream, g.limit, dy, gate, up, dgate, dup); });
}

void soft_cap(const Stream& stream, View x, float cap) {
    const Vec most = broadcast(cap), inverse = broadcast(1 / cap);
    map(stream, {x}, x, [=](Vec v, auto) { return most * tanh(v * inverse); });
}

}  // namespace

void fill_elementwise(KernelTable& table) {
    table.fill = fill;
    table.cast = cast;
    table.copy = copy;
    table.add = add;
    table.accumulate = accumulate;
    table.scale = scale;
    table.relu_forward = relu_forward;
    table.relu_backward = relu_backward;
    table.gelu_forward = gelu_forward;
    table.gelu_backward = gelu_backward;
    table.swiglu_forward = swiglu_forward;
    table.swiglu_backward = swiglu_backward;
    table.soft_cap = soft_cap;
}

}  // namespace tutti::kernels::TUTTI_ISA
