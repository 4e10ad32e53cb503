// kernels/cuda/activation.cu: relu, gelu, swiglu, forward and backward. Formulas as in kernels/reference, with
// (1 + tanh a) / 2 = sigmoid(2 a).
#include "tutti/kernels/cuda/fill.h"
#include "tutti/kernels/cuda/map.h"

namespace tutti::kernels::cuda {

namespace {

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

struct Swiglu {
    __device__ float operator()(float gate, float up) const { return gate * sigmoid(gate) * up; }
};

// dgate = dy up s (1 + gate (1 - s)), dup = dy gate s: two results, so a kernel of its own. In place is allowed.
template <int N, class T>
__device__ __forceinline__ void swiglu_backward_elements(int64_t i, const T* dy, const T* gate, const T* up, T* dgate,
                                                         T* dup) {
    float d[N], g[N], u[N], to_gate[N], to_up[N];
    load<N>(dy + i, d);
    load<N>(gate + i, g);
    load<N>(up + i, u);
#pragma unroll
    for (int k = 0; k < N; ++k) {
        const float s = sigmoid(g[k]);
        to_gate[k] = d[k] * u[k] * s * (1 + g[k] * (1 - s));
        to_up[k] = d[k] * g[k] * s;
    }
    store<N>(to_gate, dgate + i);
    store<N>(to_up, dup + i);
}

template <int N, class T>
__global__ void __launch_bounds__(kMapThreads)
    swiglu_backward_kernel(int64_t n, const T* dy, const T* gate, const T* up, T* dgate, T* dup) {
    int64_t i = (static_cast<int64_t>(blockIdx.x) * kMapThreads + threadIdx.x) * N;
    if (i + N <= n) return swiglu_backward_elements<N>(i, dy, gate, up, dgate, dup);
    for (; i < n; ++i) swiglu_backward_elements<1>(i, dy, gate, up, dgate, dup);
}

template <class Op>
void unary(const Stream& stream, View x, View y) {
    with_activation(x.dtype, [&](auto type) {
        using T = decltype(type);
        map(stream, y.numel(), Op{}, y.as<T>(), x.as<const T>());
    });
}
template <class Op>
void binary(const Stream& stream, View a, View b, View y) {
    with_activation(a.dtype, [&](auto type) {
        using T = decltype(type);
        map(stream, y.numel(), Op{}, y.as<T>(), a.as<const T>(), b.as<const T>());
    });
}

void swiglu_backward(const Stream& stream, View dy, View gate, View up, View dgate, View dup) {
    const int64_t n = dy.numel();
    if (n == 0) return;
    bool aligned = true;
    for (const View* x : {&dy, &gate, &up, &dgate, &dup}) aligned &= is_aligned(x->data);
    with_activation(dy.dtype, [&](auto type) {
        using T = decltype(type);
        const int64_t elements = aligned ? kPack<T> : 1;
        launch(
            aligned ? swiglu_backward_kernel<kPack<T>, T> : swiglu_backward_kernel<1, T>,
            {.blocks = dim3(static_cast<unsigned>(ceil_div(n, elements * kMapThreads))), .threads = dim3(kMapThreads)},
            stream, n, dy.as<const T>(), gate.as<const T>(), up.as<const T>(), dgate.as<T>(), dup.as<T>());
    });
}

}  // namespace

void fill_activation(KernelTable& table) {
    table.relu_forward = unary<Relu>;
    table.relu_backward = binary<ReluBackward>;
    table.gelu_forward = unary<Gelu>;
    table.gelu_backward = binary<GeluBackward>;
    table.swiglu_forward = binary<Swiglu>;
    table.swiglu_backward = swiglu_backward;
}

}  // namespace tutti::kernels::cuda
