// kernels/cuda/optimizer.cu: one update of a flat parameter in one launch, at the speed of memory. Formulas as in
// kernels/kernel_table.h.
#include "tutti/kernels/cuda/element.h"
#include "tutti/kernels/cuda/fill.h"

namespace tutti::kernels::cuda {

namespace {

constexpr int kThreads = 256;

struct AdamWNumbers {
    float lr, beta1, beta2, eps, weight_decay, correction1, correction2, grad_scale;
};

template <int N>
__device__ __forceinline__ void adamw_elements(int64_t i, const AdamWNumbers& a, const float* gradient, float* master,
                                               float* m, float* v, bf16* value) {
    float p[N], g[N], first[N], second[N];
    load<N>(gradient + i, g);
    load<N>(master + i, p);
    load<N>(m + i, first);
    load<N>(v + i, second);
#pragma unroll
    for (int k = 0; k < N; ++k) {
        g[k] *= a.grad_scale;
        first[k] = a.beta1 * first[k] + (1 - a.beta1) * g[k];
        second[k] = a.beta2 * second[k] + (1 - a.beta2) * g[k] * g[k];
        const float direction = first[k] / a.correction1 / (sqrtf(second[k] / a.correction2) + a.eps);
        p[k] -= a.lr * (direction + a.weight_decay * p[k]);
    }
    store<N>(first, m + i);
    store<N>(second, v + i);
    store<N>(p, master + i);
    if (value != nullptr) store<N>(p, value + i);
}

struct SgdNumbers {
    float lr, momentum, weight_decay, grad_scale;
};

template <int N>
__device__ __forceinline__ void sgd_elements(int64_t i, const SgdNumbers& s, const float* gradient, float* master,
                                             float* momentum_buffer, bf16* value) {
    float p[N], g[N], u[N];
    load<N>(gradient + i, g);
    load<N>(master + i, p);
    load<N>(momentum_buffer + i, u);
#pragma unroll
    for (int k = 0; k < N; ++k) {
        u[k] = s.momentum * u[k] + (s.grad_scale * g[k] + s.weight_decay * p[k]);
        p[k] -= s.lr * u[k];
    }
    store<N>(u, momentum_buffer + i);
    store<N>(p, master + i);
    if (value != nullptr) store<N>(p, value + i);
}

template <int N>
__global__ void __launch_bounds__(kThreads)
    adamw_kernel(int64_t n, AdamWNumbers a, const float* gradient, float* master, float* m, float* v, bf16* value) {
    int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * N;
    if (i + N <= n) return adamw_elements<N>(i, a, gradient, master, m, v, value);
    for (; i < n; ++i) adamw_elements<1>(i, a, gradient, master, m, v, value);
}

template <int N>
__global__ void __launch_bounds__(kThreads)
    sgd_kernel(int64_t n, SgdNumbers s, const float* gradient, float* master, float* momentum_buffer, bf16* value) {
    int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * N;
    if (i + N <= n) return sgd_elements<N>(i, s, gradient, master, momentum_buffer, value);
    for (; i < n; ++i) sgd_elements<1>(i, s, gradient, master, momentum_buffer, value);
}

// A 16-byte word of bf16 values stands beside two of each f32 array.
constexpr int kWide = kPack<bf16>;

Grid grid_of(int64_t n, bool wide) {
    return {.blocks = dim3(static_cast<unsigned>(ceil_div(n, (wide ? kWide : 1) * kThreads))),
            .threads = dim3(kThreads)};
}

void adamw(const Stream& stream, const AdamW& a) {
    const int64_t n = a.master.numel();
    if (n == 0) return;
    const AdamWNumbers numbers{a.lr,           a.beta1,       a.beta2,       a.eps,
                               a.weight_decay, a.correction1, a.correction2, a.grad_scale};
    const bool wide = is_aligned(a.gradient.data) && is_aligned(a.master.data) && is_aligned(a.m.data) &&
                      is_aligned(a.v.data) && is_aligned(a.value.data);
    launch(wide ? adamw_kernel<kWide> : adamw_kernel<1>, grid_of(n, wide), stream, n, numbers,
           a.gradient.as<const float>(), a.master.as<float>(), a.m.as<float>(), a.v.as<float>(), a.value.as<bf16>());
}

void sgd(const Stream& stream, const Sgd& s) {
    const int64_t n = s.master.numel();
    if (n == 0) return;
    const SgdNumbers numbers{s.lr, s.momentum, s.weight_decay, s.grad_scale};
    const bool wide = is_aligned(s.gradient.data) && is_aligned(s.master.data) && is_aligned(s.momentum_buffer.data) &&
                      is_aligned(s.value.data);
    launch(wide ? sgd_kernel<kWide> : sgd_kernel<1>, grid_of(n, wide), stream, n, numbers, s.gradient.as<const float>(),
           s.master.as<float>(), s.momentum_buffer.as<float>(), s.value.as<bf16>());
}

}  // namespace

void fill_optimizer(KernelTable& table) {
    table.adamw = adamw;
    table.sgd = sgd;
}

}  // namespace tutti::kernels::cuda
