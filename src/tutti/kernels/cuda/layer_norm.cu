// kernels/cuda/layer_norm.cu: layer norm, forward and backward; formulas as in kernels/reference/norm.cpp. A row is
// read from memory once and from the cache after that: the mean must be known before the deviations are squared.
#include "tutti/kernels/cuda/column_sums.h"
#include "tutti/kernels/cuda/fill.h"

namespace tutti::kernels::cuda {

namespace {

template <class Team, int N, class T>
__global__ void __launch_bounds__(Team::kBlockThreads)
    layer_norm_kernel(int64_t rows, int64_t columns, const T* x, const T* residual, T* sum, const T* w, const T* b,
                      float eps, T* y, float* mean, float* rstd) {
    const int64_t n = Team::row(), row = n * columns;
    if (n >= rows) return;
    const auto C = static_cast<float>(columns);
    float total = 0;
    for_columns<Team, N>(columns, [&](int64_t c) {
        float s[N];
        load_sum<N>(x, residual, sum, row + c, s);
#pragma unroll
        for (int k = 0; k < N; ++k) total += s[k];
    });
    const float m = Team::sum(total) / C;
    const T* const normalised = residual == nullptr ? x : sum;  // a thread reads here what it wrote itself
    float squares = 0;
    for_columns<Team, N>(columns, [&](int64_t c) {
        float s[N];
        load<N>(normalised + row + c, s);
#pragma unroll
        for (int k = 0; k < N; ++k) squares += (s[k] - m) * (s[k] - m);
    });
    const float r = 1 / sqrtf(Team::sum(squares) / C + eps);
    for_columns<Team, N>(columns, [&](int64_t c) {
        float s[N], weight[N], bias[N];
        load<N>(normalised + row + c, s);
        load<N>(w + c, weight);
        load<N>(b + c, bias);
#pragma unroll
        for (int k = 0; k < N; ++k) s[k] = (s[k] - m) * r * weight[k] + bias[k];
        store<N>(s, y + row + c);
    });
    if (Team::rank() == 0) {
        mean[n] = m;
        rstd[n] = r;
    }
}

// With g = dy w:  dx = [add +] rstd (g - mean_c g - x^ mean_c (g x^))
template <class Team, int N, class T>
__global__ void __launch_bounds__(Team::kBlockThreads)
    layer_norm_input_kernel(int64_t rows, int64_t columns, const T* dy, const T* x, const T* w, const float* mean,
                            const float* rstd, const T* add, T* dx) {
    const int64_t n = Team::row();
    if (n >= rows) return;
    const float m = mean[n], r = rstd[n], C = static_cast<float>(columns);
    const auto load_row = [&](int64_t c, float(&g)[N], float(&xhat)[N]) {
        float weight[N];
        load<N>(dy + n * columns + c, g);
        load<N>(x + n * columns + c, xhat);
        load<N>(w + c, weight);
#pragma unroll
        for (int k = 0; k < N; ++k) {
            g[k] *= weight[k];
            xhat[k] = (xhat[k] - m) * r;
        }
    };
    float sum_g = 0, sum_gx = 0;
    for_columns<Team, N>(columns, [&](int64_t c) {
        float g[N], xhat[N];
        load_row(c, g, xhat);
#pragma unroll
        for (int k = 0; k < N; ++k) {
            sum_g += g[k];
            sum_gx += g[k] * xhat[k];
        }
    });
    const float mean_g = Team::sum(sum_g) / C, mean_gx = Team::sum(sum_gx) / C;
    for_columns<Team, N>(columns, [&](int64_t c) {
        float g[N], xhat[N];
        load_row(c, g, xhat);
        float before[N];
        load_or_zero<N>(add, n * columns + c, before);
#pragma unroll
        for (int k = 0; k < N; ++k) g[k] = before[k] + r * (g[k] - mean_g - xhat[k] * mean_gx);
        store<N>(g, dx + n * columns + c);
    });
}

// dw += sum_n dy x^,  db += sum_n dy
template <class T>
struct WeightTerms {
    const T *dy, *x;
    const float *mean, *rstd;
    int64_t columns;
    template <int N>
    __device__ void operator()(int64_t n, int64_t c, float (&out)[2][N]) const {
        float in[N];
        load<N>(dy + n * columns + c, out[1]);
        load<N>(x + n * columns + c, in);
        const float m = mean[n], r = rstd[n];
#pragma unroll
        for (int k = 0; k < N; ++k) out[0][k] = out[1][k] * ((in[k] - m) * r);
    }
};

void layer_norm_forward(const Stream& stream, const LayerNormForward& f) {
    const int64_t N = f.x.rows(), C = f.x.columns();
    if (N == 0) return;
    with_activation(f.x.dtype, [&](auto type) {
        using T = decltype(type);
        const bool wide = rows_aligned<T>(C, f.x.data, f.residual.data, f.sum.data, f.w.data, f.b.data, f.y.data);
        with_team<T>(C, wide, [&](auto team, auto width) {
            using Rows = decltype(team);
            launch(layer_norm_kernel<Rows, width(), T>, grid_of_rows<Rows>(N), stream, N, C, f.x.as<const T>(),
                   f.residual.as<const T>(), f.sum.as<T>(), f.w.as<const T>(), f.b.as<const T>(), f.eps, f.y.as<T>(),
                   f.mean.as<float>(), f.rstd.as<float>());
        });
    });
}

void layer_norm_backward_input(const Stream& stream, const LayerNormBackward& b) {
    const int64_t N = b.x.rows(), C = b.x.columns();
    if (N == 0) return;
    with_activation(b.x.dtype, [&](auto type) {
        using T = decltype(type);
        const bool wide = rows_aligned<T>(C, b.dy.data, b.x.data, b.w.data, b.add.data, b.dx.data);
        with_team<T>(C, wide, [&](auto team, auto width) {
            using Rows = decltype(team);
            launch(layer_norm_input_kernel<Rows, width(), T>, grid_of_rows<Rows>(N), stream, N, C, b.dy.as<const T>(),
                   b.x.as<const T>(), b.w.as<const T>(), b.mean.as<const float>(), b.rstd.as<const float>(),
                   b.add.as<const T>(), b.dx.as<T>());
        });
    });
}

void layer_norm_backward_weight(const Stream& stream, View dy, View x, View mean, View rstd, View dw, View db) {
    const int64_t N = x.rows(), C = x.columns();
    with_activation(x.dtype, [&](auto type) {
        using T = decltype(type);
        const WeightTerms<T> terms{dy.as<const T>(), x.as<const T>(), mean.as<const float>(), rstd.as<const float>(),
                                   C};
        const SumTargets targets{{dw.as<float>(), db.as<float>()}};
        if (rows_aligned<T>(C, dy.data, x.data))
            column_sums<2, kPack<T>>(stream, N, C, terms, targets);
        else
            column_sums<2, 1>(stream, N, C, terms, targets);
    });
}

}  // namespace

void fill_layer_norm(KernelTable& table) {
    table.layer_norm_forward = layer_norm_forward;
    table.layer_norm_backward_input = layer_norm_backward_input;
    table.layer_norm_backward_weight = layer_norm_backward_weight;
}

}  // namespace tutti::kernels::cuda
