// kernels/cuda/elementwise.cu: fill, cast, add, accumulate, scale: one pass at the speed of memory.
#include "tutti/kernels/cuda/fill.h"
#include "tutti/kernels/cuda/map.h"

namespace tutti::kernels::cuda {

namespace {

struct Constant {
    float value;
    __device__ float operator()() const { return value; }
};
struct Identity {
    __device__ float operator()(float x) const { return x; }
};
struct Sum {
    __device__ float operator()(float a, float b) const { return a + b; }
};
struct Product {
    float factor;
    __device__ float operator()(float x) const { return x * factor; }
};

void fill(const Stream& stream, View y, float value) {
    with_type(y.dtype, [&](auto type) { map(stream, y.numel(), Constant{value}, y.as<decltype(type)>()); });
}

void cast(const Stream& stream, View x, View y) {
    with_type(x.dtype, [&](auto from) {
        with_type(y.dtype, [&](auto to) {
            map(stream, y.numel(), Identity{}, y.as<decltype(to)>(), x.as<const decltype(from)>());
        });
    });
}

void add(const Stream& stream, View a, View b, View y) {
    with_activation(y.dtype, [&](auto type) {
        using T = decltype(type);
        map(stream, y.numel(), Sum{}, y.as<T>(), a.as<const T>(), b.as<const T>());
    });
}

void accumulate(const Stream& stream, View x, View y) {
    with_activation(x.dtype, [&](auto type) {
        using T = decltype(type);
        if (y.dtype == x.dtype)
            map(stream, y.numel(), Sum{}, y.as<T>(), y.as<const T>(), x.as<const T>());
        else
            map(stream, y.numel(), Sum{}, y.as<float>(), y.as<const float>(), x.as<const T>());
    });
}

void scale(const Stream& stream, View x, float factor) {
    with_activation(x.dtype, [&](auto type) {
        using T = decltype(type);
        map(stream, x.numel(), Product{factor}, x.as<T>(), x.as<const T>());
    });
}

}  // namespace

void fill_elementwise(KernelTable& table) {
    table.fill = fill;
    table.cast = cast;
    table.add = add;
    table.accumulate = accumulate;
    table.scale = scale;
}

}  // namespace tutti::kernels::cuda
