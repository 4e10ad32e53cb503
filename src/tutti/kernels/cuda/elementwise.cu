// kernels/cuda/elementwise.cu: y[i] = op(x1[i], x2[i], ...) at the speed of memory: fill, cast, copy, add, accumulate,
// scale; ReLU, GELU and SwiGLU with their gradients. Formulas as in kernels/reference/elementwise.cpp, with
// (1 + tanh a) / 2 = sigmoid(2 a).
#include <algorithm>
#include <tuple>

#include "tutti/kernels/cuda/element.h"
#include "tutti/kernels/cuda/fill.h"

namespace tutti::kernels::cuda {

namespace {

constexpr int kMapThreads = 256;

template <int N, class Op, class Y, class... X>
__device__ __forceinline__ void map_elements(int64_t i, Op op, Y* y, const X*... x) {
    // One array per input, loaded before the first use.
    [&]<size_t... I>(std::index_sequence<I...>) {
        float in[sizeof...(X) + 1][N], out[N];
        (load<N>(x + i, in[I]), ...);
#pragma unroll
        for (int k = 0; k < N; ++k) out[k] = op(in[I][k]...);
        store<N>(out, y + i);
    }
    (std::index_sequence_for<X...>{});
}

// A thread takes N elements, and the last elements of the array one by one.
template <int N, class Op, class Y, class... X>
__global__ void __launch_bounds__(kMapThreads) map_kernel(int64_t n, Op op, Y* y, const X*... x) {
    int64_t i = (static_cast<int64_t>(blockIdx.x) * kMapThreads + threadIdx.x) * N;
    if (i + N <= n) return map_elements<N>(i, op, y, x...);
    for (; i < n; ++i) map_elements<1>(i, op, y, x...);
}

// y may be one of the inputs.
template <class Op, class Y, class... X>
void map(const Stream& stream, int64_t n, Op op, Y* y, const X*... x) {
    if (n == 0) return;
    constexpr int kWide = std::max({kPack<Y>, kPack<X>...});
    const auto run = [&]<int N>(std::integral_constant<int, N>) {
        launch(map_kernel<N, Op, Y, X...>, grid_of_tasks(ceil_div(n, N), kMapThreads), stream, n, op, y, x...);
    };
    if (is_aligned(y) && (is_aligned(x) && ...))
        run(std::integral_constant<int, kWide>{});
    else
        run(std::integral_constant<int, 1>{});
}

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

// Addresses in a view: element i of the flattened tensor is element at(i) of its memory.
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
    launch(copy_kernel<T>, grid_of_tasks(n, kMapThreads), stream, n, x.as<const T>(), Places(x), y.as<T>(), Places(y));
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
    with_type(y.dtype, [&]<class T>(T) { map(stream, y.numel(), Sum{}, y.as<T>(), a.as<const T>(), b.as<const T>()); });
}

void accumulate(const Stream& stream, View x, View y) {
    with_type(x.dtype, [&]<class T>(T) {
        if (y.dtype == x.dtype)
            map(stream, y.numel(), Sum{}, y.as<T>(), y.as<const T>(), x.as<const T>());
        else
            map(stream, y.numel(), Sum{}, y.as<float>(), y.as<const float>(), x.as<const T>());
    });
}

void scale(const Stream& stream, View x, float factor) {
    with_type(x.dtype, [&]<class T>(T) { map(stream, x.numel(), Product{factor}, x.as<T>(), x.as<const T>()); });
}

__device__ __forceinline__ float sigmoid(float x) { return fast_reciprocal(1 + expf(-x)); }

struct Relu {
    __device__ float operator()(float x) const { return x < 0 ? 0 : x; }  // NaN stays
};
struct ReluBackward {
    __device__ float operator()(float dy, float y) const { return y > 0 ? dy : 0; }
};

constexpr float kTwoSqrt2OverPi = 1.5957691216057308f, kGeluCubic = 0.044715f;

// gelu(x) = x sigmoid(2 a), a = sqrt(2/pi) (x + 0.044715 x^3)
struct Gelu {
    __device__ float operator()(float x) const { return x * sigmoid(kTwoSqrt2OverPi * (x + kGeluCubic * x * x * x)); }
};
// gelu'(x) = s + x s (1 - s) 2 a', a' = sqrt(2/pi) (1 + 3 0.044715 x^2)
struct GeluBackward {
    __device__ float operator()(float dy, float x) const {
        const float s = sigmoid(kTwoSqrt2OverPi * (x + kGeluCubic * x * x * x));
        const float slope = kTwoSqrt2OverPi * (1 + 3 * kGeluCubic * x * x);
        return dy * (s + x * (s * (1 - s)) * slope);
    }
};

// min(x, limit); NaN stays NaN, other than with fminf.
__device__ __forceinline__ float at_most(float x, float limit) { return x > limit ? limit : x; }

// A gated unit of x and u, and its derivatives to both.
struct Unit {
    float y, to_gate, to_up;
};
template <Gate::Kind g>
__device__ __forceinline__ Unit unit_of(float x, float u, float limit) {
    if constexpr (g == Gate::gelu) {
        const float value = Gelu{}(x);
        return {value * u, u * GeluBackward{}(1, x), value};
    } else if constexpr (g == Gate::silu) {
        const float s = sigmoid(x), value = x * s;
        return {value * u, u * (s * (1 + x * (1 - s))), value};
    } else if constexpr (g == Gate::sigmoid) {
        const float s = sigmoid(x);
        return {s * u, u * (s * (1 - s)), s};
    } else if constexpr (g == Gate::relu) {
        const float value = Relu{}(x);
        return {value * u, ReluBackward{}(u, x), value};
    } else if constexpr (g == Gate::clamped) {
        const float gate = at_most(x, limit), up = 1 - at_most(-at_most(u, limit), limit), t = kClampedSlope * gate;
        const float s = sigmoid(t), value = gate * s;
        return {value * up, x >= limit ? 0 : up * (s * (1 + t * (1 - s))), fabsf(u) >= limit ? 0 : value};
    }
}

// A matrix whose rows may be apart, as those of gate and up side by side.
template <class T>
struct Rows {
    T* data;
    int64_t stride;
    explicit Rows(const View& x) : data(x.as<T>()), stride(x.shape.rank() < 2 ? 0 : x.stride(-2)) {}
    __device__ T* at(int64_t row, int64_t column) const { return data + row * stride + column; }
};

// A thread takes N elements of rows gridDim.y apart; N divides `columns`.
template <Gate::Kind g, int N, class T>
__global__ void __launch_bounds__(kMapThreads)
    swiglu_kernel(int64_t rows, int64_t columns, float limit, Rows<const T> gate, Rows<const T> up, Rows<T> y) {
    const int64_t c = (static_cast<int64_t>(blockIdx.x) * kMapThreads + threadIdx.x) * N;
    for (int64_t row = blockIdx.y; c < columns && row < rows; row += gridDim.y) {
        float x[N], u[N], out[N];
        load<N>(gate.at(row, c), x);
        load<N>(up.at(row, c), u);
#pragma unroll
        for (int k = 0; k < N; ++k) out[k] = unit_of<g>(x[k], u[k], limit).y;
        store_whole<N>(out, y.at(row, c));
    }
}

// In place is allowed.
template <Gate::Kind g, int N, class T>
__global__ void __launch_bounds__(kMapThreads)
    swiglu_backward_kernel(int64_t rows, int64_t columns, float limit, Rows<const T> dy, Rows<const T> gate,
                           Rows<const T> up, Rows<T> dgate, Rows<T> dup) {
    const int64_t c = (static_cast<int64_t>(blockIdx.x) * kMapThreads + threadIdx.x) * N;
    for (int64_t row = blockIdx.y; c < columns && row < rows; row += gridDim.y) {
        float d[N], x[N], u[N], to_gate[N], to_up[N];
        load<N>(dy.at(row, c), d);
        load<N>(gate.at(row, c), x);
        load<N>(up.at(row, c), u);
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const Unit unit = unit_of<g>(x[k], u[k], limit);
            to_gate[k] = d[k] * unit.to_gate;
            to_up[k] = d[k] * unit.to_up;
        }
        store_whole<N>(to_gate, dgate.at(row, c));
        store_whole<N>(to_up, dup.at(row, c));
    }
}

// Launches a kernel of matrices, which are one long row where all are contiguous: `wide` if they divide into packs.
template <class T, class... P, class... V>
void launch_rows(const Stream& stream, void (*wide)(int64_t, int64_t, float, P...),
                 void (*narrow)(int64_t, int64_t, float, P...), float limit, const V&... views) {
    const View& like = std::get<0>(std::tie(views...));
    if (like.numel() == 0) return;
    const int64_t rows = (views.contiguous() && ...) ? 1 : like.rows(), columns = like.numel() / rows;
    const auto in_packs = [](const View& x) {
        return is_aligned(x.data) && (x.contiguous() || x.stride(-2) % kPack<T> == 0);
    };
    const bool packs = columns % kPack<T> == 0 && (in_packs(views) && ...);
    Grid grid = grid_of_tasks(columns / (packs ? kPack<T> : 1), kMapThreads);
    grid.blocks.y = static_cast<unsigned>(std::min<int64_t>(rows, 65535));  // the most that CUDA allows
    launch(packs ? wide : narrow, grid, stream, rows, columns, limit, P(views)...);
}

template <class Op>
void unary(const Stream& stream, View x, View y) {
    with_type(x.dtype, [&]<class T>(T) { map(stream, y.numel(), Op{}, y.as<T>(), x.as<const T>()); });
}
template <class Op>
void binary(const Stream& stream, View a, View b, View y) {
    with_type(a.dtype, [&]<class T>(T) { map(stream, y.numel(), Op{}, y.as<T>(), a.as<const T>(), b.as<const T>()); });
}

struct SoftCap {
    float cap;
    __device__ float operator()(float x) const { return cap * tanhf(x / cap); }
};
void soft_cap(const Stream& stream, View x, float cap) {
    with_type(x.dtype, [&]<class T>(T) { map(stream, x.numel(), SoftCap{cap}, x.as<T>(), x.as<const T>()); });
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
    with_type(y.dtype, [&]<class T>(T) {
        launch_rows<T>(stream, swiglu_kernel<g, kPack<T>, T>, swiglu_kernel<g, 1, T>, limit, gate, up, y);
    });
}
void swiglu_forward(const Stream& stream, Gate g, View gate, View up, View y) {
    with_kind(g.kind, [&]<Gate::Kind kind>() { gated<kind>(stream, g.limit, gate, up, y); });
}

template <Gate::Kind g>
void gated_backward(const Stream& stream, float limit, View dy, View gate, View up, View dgate, View dup) {
    with_type(dy.dtype, [&]<class T>(T) {
        launch_rows<T>(stream, swiglu_backward_kernel<g, kPack<T>, T>, swiglu_backward_kernel<g, 1, T>, limit, dy, gate,
                       up, dgate, dup);
    });
}
void swiglu_backward(const Stream& stream, Gate g, View dy, View gate, View up, View dgate, View dup) {
    with_kind(g.kind, [&]<Gate::Kind kind>() { gated_backward<kind>(stream, g.limit, dy, gate, up, dgate, dup); });
}

}  // namespace

void fill_elementwise(KernelTable& table) {
    table.fill = fill;
    table.cast = cast;
    table.copy = copy;
    table.add = add;
    table.accumulate = accumulate;
    table.scale = scale;
    table.relu_forward = unary<Relu>;
    table.relu_backward = binary<ReluBackward>;
    table.gelu_forward = unary<Gelu>;
    table.gelu_backward = binary<GeluBackward>;
    table.swiglu_forward = swiglu_forward;
    table.swiglu_backward = swiglu_backward;
    table.soft_cap = soft_cap;
}

}  // namespace tutti::kernels::cuda
