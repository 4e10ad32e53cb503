// kernels/cuda/reduction.cu: sums of squares by block, bias gradients, squared error.
#include "tutti/kernels/cuda/column_sums.h"
#include "tutti/kernels/cuda/fill.h"

namespace tutti::kernels::cuda {

namespace {

using SumTeam = Team<1>;

// A warp per block of kSumBlock values. Squares of f32 are exact in f64.
template <int N>
__global__ void __launch_bounds__(SumTeam::kBlockThreads)
    sums_of_squares_kernel(int64_t n, const float* x, double* sums) {
    const int64_t begin = SumTeam::row() * kSumBlock, end = begin + kSumBlock < n ? begin + kSumBlock : n;
    if (begin >= n) return;
    double sum = 0;
    for (int64_t i = begin + SumTeam::rank() * N; i < end; i += SumTeam::kThreads * N) {
        float values[N] = {};
        if (i + N <= end)
            load<N>(x + i, values);
        else
            for (int k = 0; k < end - i; ++k) values[k] = x[i + k];
#pragma unroll
        for (int k = 0; k < N; ++k) sum += static_cast<double>(values[k]) * static_cast<double>(values[k]);
    }
    sum = SumTeam::sum(sum);
    if (SumTeam::rank() == 0) sums[SumTeam::row()] = sum;
}

void sums_of_squares(const Stream& stream, View x, View sums) {
    if (sums.numel() == 0) return;
    launch(is_aligned(x.data) ? sums_of_squares_kernel<4> : sums_of_squares_kernel<1>,
           grid_of_rows<SumTeam>(sums.numel()), stream, x.numel(), x.as<const float>(), sums.as<double>());
}

template <class T>
struct BiasTerms {
    const T* dy;
    int64_t columns;
    template <int N>
    __device__ void operator()(int64_t n, int64_t c, float (&out)[1][N]) const {
        load<N>(dy + n * columns + c, out[0]);
    }
};

void bias_backward(const Stream& stream, View dy, View db) {
    const int64_t N = dy.rows(), C = dy.columns();
    with_activation(dy.dtype, [&](auto type) {
        using T = decltype(type);
        const BiasTerms<T> terms{dy.as<const T>(), C};
        const SumTargets targets{db.as<float>()};
        if (rows_aligned<T>(C, dy.data))
            column_sums<1, kPack<T>>(stream, N, C, terms, targets);
        else
            column_sums<1, 1>(stream, N, C, terms, targets);
    });
}

// loss = sum_c (x - target)^2, dx = grad_scale 2 (x - target)
template <class Team, int N, class T>
__global__ void __launch_bounds__(Team::kBlockThreads)
    squared_error_kernel(int64_t rows, int64_t columns, const T* x, const T* target, float grad_scale, float* losses,
                         T* dx) {
    const int64_t n = Team::row();
    if (n >= rows) return;
    float sum = 0;
    for_columns<Team, N>(columns, [&](int64_t c) {
        float a[N], b[N];
        load<N>(x + n * columns + c, a);
        load<N>(target + n * columns + c, b);
#pragma unroll
        for (int k = 0; k < N; ++k) {
            a[k] -= b[k];
            sum += a[k] * a[k];
            a[k] *= 2 * grad_scale;
        }
        if (dx != nullptr) store<N>(a, dx + n * columns + c);
    });
    sum = Team::sum(sum);
    if (Team::rank() == 0) losses[n] = sum;
}

void squared_error(const Stream& stream, View x, View target, float grad_scale, View losses, View dx) {
    const int64_t N = x.rows(), C = x.columns();
    if (N == 0) return;
    with_activation(x.dtype, [&](auto type) {
        using T = decltype(type);
        with_team<T>(C, rows_aligned<T>(C, x.data, target.data, dx.data), [&](auto team, auto width) {
            using Rows = decltype(team);
            launch(squared_error_kernel<Rows, width(), T>, grid_of_rows<Rows>(N), stream, N, C, x.as<const T>(),
                   target.as<const T>(), grad_scale, losses.as<float>(), dx.as<T>());
        });
    });
}

}  // namespace

void fill_reduction(KernelTable& table) {
    table.sums_of_squares = sums_of_squares;
    table.bias_backward = bias_backward;
    table.squared_error = squared_error;
}

}  // namespace tutti::kernels::cuda
