// kernels/cuda/elementwise.cu: fill, cast, copy, add, accumulate, scale: one pass at the speed of memory.
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

// Of a view: element i of the flattened tensor lies at element at(i) of its memory.
struct Places {
    int64_t sizes[Shape::kMaxDims], strides[Shape::kMaxDims];
    int rank;

    explicit Places(const View& view) : rank(view.shape.rank()) {
        for (int d = 0; d < rank; ++d) {
            sizes[d] = view.shape[d];
            strides[d] = view.stride(d);
        }
    }
    __device__ int64_t at(int64_t i) const {
        int64_t place = 0;
        for (int d = rank - 1; d >= 0; --d) {
            place += i % sizes[d] * strides[d];
            i /= sizes[d];
        }
        return place;
    }
};

template <class T>
__global__ void __launch_bounds__(kMapThreads) copy_kernel(int64_t n, const T* x, Places from, T* y, Places to) {
    const int64_t i = static_cast<int64_t>(blockIdx.x) * kMapThreads + threadIdx.x;
    if (i < n) y[to.at(i)] = x[from.at(i)];
}

template <class T>
void copy_as(const Stream& stream, View x, View y) {
    const int64_t n = y.numel();
    if (n == 0) return;
    launch(copy_kernel<T>,
           {.blocks = dim3(static_cast<unsigned>(ceil_div(n, kMapThreads))), .threads = dim3(kMapThreads)}, stream, n,
           x.as<const T>(), Places(x), y.as<T>(), Places(y));
}

void copy(const Stream& stream, View x, View y) {
    if (size_of(y.dtype) == 2) return copy_as<uint16_t>(stream, x, y);
    if (size_of(y.dtype) == 4) return copy_as<uint32_t>(stream, x, y);
    if (size_of(y.dtype) == 8) return copy_as<uint64_t>(stream, x, y);
    copy_as<uint8_t>(stream, x, y);
}

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
    table.copy = copy;
    table.add = add;
    table.accumulate = accumulate;
    table.scale = scale;
}

}  // namespace tutti::kernels::cuda
