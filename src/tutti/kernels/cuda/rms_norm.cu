// kernels/cuda/rms_norm.cu: RMS norm, forward and backward; formulas as in kernels/reference/norm.cpp. A row is read
// twice, the second time from the cache.
#include "tutti/kernels/cuda/column_sums.h"
#include "tutti/kernels/cuda/fill.h"

namespace tutti::kernels::cuda {

namespace {

template <class Team, int N, class T>
__global__ void __launch_bounds__(Team::kBlockThreads)
    rms_norm_kernel(int64_t rows, int64_t columns, const T* x, const T* w, float eps, T* y, float* rstd,
                    const T* residual, T* sum) {
    const int64_t n = Team::row();
    if (n >= rows) return;
    x += n * columns;
    y += n * columns;
    if (residual != nullptr) x = write_sum<Team, N>(columns, x, residual + n * columns, sum + n * columns);
    float squares = 0;
    for_columns<Team, N>(columns, [&](int64_t c) {
        float in[N];
        load<N>(x + c, in);
#pragma unroll
        for (int k = 0; k < N; ++k) squares += in[k] * in[k];
    });
    const float r = 1 / sqrtf(Team::sum(squares) / static_cast<float>(columns) + eps);
    for_columns<Team, N>(columns, [&](int64_t c) {
        float in[N], weight[N];
        load<N>(x + c, in);
        load<N>(w + c, weight);
#pragma unroll
        for (int k = 0; k < N; ++k) in[k] = in[k] * r * weight[k];
        store<N>(in, y + c);
    });
    if (Team::rank() == 0) rstd[n] = r;
}

// With g = dy w:  dx = rstd (g - x^ mean_c (g x^))
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
#pragma unroll
        for (int k = 0; k < N; ++k) g[k] = r * (g[k] - xhat[k] * mean_gx);
        if (add != nullptr) {
            load<N>(add + n * columns + c, xhat);
#pragma unroll
            for (int k = 0; k < N; ++k) g[k] += xhat[k];
        }
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

void rms_norm_forward(const Stream& stream, const RmsNormForward& a) {
    const int64_t N = a.x.rows(), C = a.x.columns();
    if (N == 0) return;
    with_activation(a.x.dtype, [&](auto type) {
        using T = decltype(type);
        with_team<T>(C, rows_aligned<T>(C, a.x.data, a.w.data, a.y.data, a.residual.data, a.sum.data),
                     [&](auto team, auto width) {
                         using Rows = decltype(team);
                         launch(rms_norm_kernel<Rows, width(), T>, grid_of_rows<Rows>(N), stream, N, C,
                                a.x.as<const T>(), a.w.as<const T>(), a.eps, a.y.as<T>(), a.rstd.as<float>(),
                                a.residual.as<const T>(), a.sum.as<T>());
                     });
    });
}

void rms_norm_backward_input(const Stream& stream, const RmsNormBackward& a) {
    const int64_t N = a.x.rows(), C = a.x.columns();
    if (N == 0) return;
    with_activation(a.x.dtype, [&](auto type) {
        using T = decltype(type);
        with_team<T>(C, rows_aligned<T>(C, a.dy.data, a.x.data, a.w.data, a.dx.data, a.add.data),
                     [&](auto team, auto width) {
                         using Rows = decltype(team);
                         launch(rms_norm_input_kernel<Rows, width(), T>, grid_of_rows<Rows>(N), stream, N, C,
                                a.dy.as<const T>(), a.x.as<const T>(), a.w.as<const T>(), a.rstd.as<const float>(),
                                a.add.as<const T>(), a.dx.as<T>());
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
