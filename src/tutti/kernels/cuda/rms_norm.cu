// kernels/cuda/rms_norm.cu: RMS norm, forward and backward; formulas as in kernels/reference/norm.cpp. A row is read
// twice, the second time from the cache.
#include "tutti/kernels/cuda/column_sums.h"
#include "tutti/kernels/cuda/fill.h"

namespace tutti::kernels::cuda {

namespace {

template <class Team, int N, class T>
__global__ void __launch_bounds__(Team::kBlockThreads)
    rms_norm_kernel(int64_t rows, int64_t columns, const T* x, const T* residual, T* sum, const T* w, float eps, T* y,
                    float* rstd) {
    const int64_t n = Team::row(), row = n * columns;
    if (n >= rows) return;
    float squares = 0;
    for_columns<Team, N>(columns, [&](int64_t c) {
        float s[N];
        load_sum<N>(x, residual, sum, row + c, s);
#pragma unroll
        for (int k = 0; k < N; ++k) squares += s[k] * s[k];
    });
    const float r = 1 / sqrtf(Team::sum(squares) / static_cast<float>(columns) + eps);
    const T* const normalised = residual == nullptr ? x : sum;  // a thread reads here what it wrote itself
    for_columns<Team, N>(columns, [&](int64_t c) {
        float s[N], weight[N];
        load<N>(normalised + row + c, s);
        load<N>(w + c, weight);
#pragma unroll
        for (int k = 0; k < N; ++k) s[k] = s[k] * r * weight[k];
        store<N>(s, y + row + c);
    });
    if (Team::rank() == 0) rstd[n] = r;
}

// With g = dy w:  dx = [add +] rstd (g - x^ mean_c (g x^))
template <class Team, int N, class T>
__global__ void __launch_bounds__(Team::kBlockThreads)
    rms_norm_input_kernel(int64_t rows, int64_t columns, const T* dy, const T* x, const T* w, const float* rstd,
                          const T* add, T* dx) {
    const int64_t n = Team::row();
    if (n >= rows) return;
    const float r = rstd[n];
    const auto load_row = [&](int64_t c, float(&g)[N], float(&xhat)[N]) {
        float weight[N];
        load<N>(dy + n * columns + c, g);
        load<N>(x + n * columns + c, xhat);
        load<N>(w + c, weight);
#pragma unroll
        for (int k = 0; k < N; ++k) {
            g[k] *= weight[k];
            xhat[k] *= r;
        }
    };
    float sum = 0;
    for_columns<Team, N>(columns, [&](int64_t c) {
        float g[N], xhat[N];
        load_row(c, g, xhat);
#pragma unroll
        for (int k = 0; k < N; ++k) sum += g[k] * xhat[k];
    });
    const float mean_gx = Team::sum(sum) / static_cast<float>(columns);
    for_columns<Team, N>(columns, [&](int64_t c) {
        float g[N], xhat[N];
        load_row(c, g, xhat);
        float before[N];
        load_or_zero<N>(add, n * columns + c, before);
#pragma unroll
        for (int k = 0; k < N; ++k) g[k] = before[k] + r * (g[k] - xhat[k] * mean_gx);
        store<N>(g, dx + n * columns + c);
    });
}

// dw += sum_n dy x^
template <class T>
struct WeightTerms {
    const T *dy, *x;
    const float* rstd;
    int64_t columns;
    template <int N>
    __device__ void operator()(int64_t n, int64_t c, float (&out)[1][N]) const {
        float in[N];
        load<N>(dy + n * columns + c, out[0]);
        load<N>(x + n * columns + c, in);
        const float r = rstd[n];
#pragma unroll
        for (int k = 0; k < N; ++k) out[0][k] *= in[k] * r;
    }
};

void rms_norm_forward(const Stream& stream, const RmsNormForward& f) {
    const int64_t N = f.x.rows(), C = f.x.columns();
    if (N == 0) return;
    with_activation(f.x.dtype, [&](auto type) {
        using T = decltype(type);
        const bool wide = rows_aligned<T>(C, f.x.data, f.residual.data, f.sum.data, f.w.data, f.y.data);
        with_team<T>(C, wide, [&](auto team, auto width) {
            using Rows = decltype(team);
            launch(rms_norm_kernel<Rows, width(), T>, grid_of_rows<Rows>(N), stream, N, C, f.x.as<const T>(),
                   f.residual.as<const T>(), f.sum.as<T>(), f.w.as<const T>(), f.eps, f.y.as<T>(), f.rstd.as<float>());
        });
    });
}

void rms_norm_backward_input(const Stream& stream, const RmsNormBackward& b) {
    const int64_t N = b.x.rows(), C = b.x.columns();
    if (N == 0) return;
    with_activation(b.x.dtype, [&](auto type) {
        using T = decltype(type);
        const bool wide = rows_aligned<T>(C, b.dy.data, b.x.data, b.w.data, b.add.data, b.dx.data);
        with_team<T>(C, wide, [&](auto team, auto width) {
            using Rows = decltype(team);
            launch(rms_norm_input_kernel<Rows, width(), T>, grid_of_rows<Rows>(N), stream, N, C, b.dy.as<const T>(),
                   b.x.as<const T>(), b.w.as<const T>(), b.rstd.as<const float>(), b.add.as<const T>(), b.dx.as<T>());
        });
    });
}

void rms_norm_backward_weight(const Stream& stream, View dy, View x, View rstd, View dw) {
    const int64_t N = x.rows(), C = x.columns();
    with_activation(x.dtype, [&](auto type) {
        using T = decltype(type);
        const WeightTerms<T> terms{dy.as<const T>(), x.as<const T>(), rstd.as<const float>(), C};
        const SumTargets targets{{dw.as<float>(), nullptr}};
        if (rows_aligned<T>(C, dy.data, x.data))
            column_sums<1, kPack<T>>(stream, N, C, terms, targets);
        else
            column_sums<1, 1>(stream, N, C, terms, targets);
    });
}

}  // namespace

void fill_rms_norm(KernelTable& table) {
    table.rms_norm_forward = rms_norm_forward;
    table.rms_norm_backward_input = rms_norm_backward_input;
    table.rms_norm_backward_weight = rms_norm_backward_weight;
}

}  // namespace tutti::kernels::cuda
