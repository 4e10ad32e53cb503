// kernels/cuda/expert_rows.cu: permutation of rows to experts and back. Every element has one
// writer, so there are no atomics.
#include "tutti/kernels/cuda/cuda_table.h"
#include "tutti/kernels/cuda/fill.h"
#include "tutti/kernels/cuda/team.h"

namespace tutti::kernels::cuda {

namespace {

constexpr int kThreads = 256;

// y[m] = x[rows[m]], or zeros; a thread copies W elements.
template <int W, class T>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(int64_t n, int64_t columns, const T* x, const int32_t* rows, T* y) {
    const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * W;
    if (i >= n) return;
    const int64_t m = i / columns, from = rows[m];
    float values[W] = {};
    if (from >= 0) load<W>(x + from * columns + (i - m * columns), values);
    store<W>(values, y + i);
}

// y[n] = sum_j weights[n, j] x[rows[n, j]]; a thread sums W elements.
template <int W, class T>
__global__ void __launch_bounds__(kThreads)
    combine_kernel(int64_t n, int64_t columns, int64_t k, const T* x, const int32_t* rows, const float* weights, T* y) {
    const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * W;
    if (i >= n) return;
    const int64_t row = i / columns, c = i - row * columns;
    float sums[W] = {};
    for (int64_t j = row * k; j < (row + 1) * k; ++j) {
        if (rows[j] < 0) continue;
        float values[W];
        load<W>(x + rows[j] * columns + c, values);
        const float weight = weights == nullptr ? 1.0f : weights[j];
#pragma unroll
        for (int v = 0; v < W; ++v) sums[v] = fmaf(weight, values[v], sums[v]);
    }
    store<W>(sums, y + i);
}

// A team per choice i of row i / k: dx[rows[i]] = weights[i] dy[i / k], dweights[i] = dy[i / k] . x[rows[i]].
template <class Team, int W, class T>
__global__ void __launch_bounds__(Team::kBlockThreads)
    combine_backward_kernel(int64_t choices, int64_t columns, int64_t k, const T* dy, const T* x, const int32_t* rows,
                            const float* weights, T* dx, float* dweights) {
    const int64_t i = Team::row();
    if (i >= choices) return;
    const int64_t row = rows[i];
    float product = 0;
    if (row >= 0) {
        const float weight = weights == nullptr ? 1.0f : weights[i];
        for_columns<Team, W>(columns, [&](int64_t c) {
            float d[W], values[W], scaled[W];
            load<W>(dy + i / k * columns + c, d);
            if (dweights != nullptr) load<W>(x + row * columns + c, values);
#pragma unroll
            for (int v = 0; v < W; ++v) {
                if (dweights != nullptr) product = fmaf(d[v], values[v], product);
                scaled[v] = weight * d[v];
            }
            store<W>(scaled, dx + row * columns + c);
        });
    }
    if (dweights == nullptr) return;
    product = Team::sum(product);
    if (Team::rank() == 0) dweights[i] = product;
}

void gather_rows(const Stream& stream, View x, View rows, View y) {
    const int64_t n = y.numel(), C = y.columns();
    if (n == 0) return;
    with_type(y.dtype, [&]<class T>(T) {
        const bool wide = rows_aligned<T>(C, x.data, y.data);
        launch(wide ? gather_kernel<kPack<T>, T> : gather_kernel<1, T>,
               grid_of_tasks(ceil_div(n, wide ? kPack<T> : 1), kThreads), stream, n, C, x.as<const T>(),
               rows.as<const int32_t>(), y.as<T>());
    });
}

void combine_rows(const Stream& stream, View x, View rows, View weights, View y) {
    const int64_t n = y.numel(), C = y.columns();
    if (n == 0) return;
    with_type(y.dtype, [&]<class T>(T) {
        const bool wide = rows_aligned<T>(C, x.data, y.data);
        launch(wide ? combine_kernel<kPack<T>, T> : combine_kernel<1, T>,
               grid_of_tasks(ceil_div(n, wide ? kPack<T> : 1), kThreads), stream, n, C, rows.shape[1], x.as<const T>(),
               rows.as<const int32_t>(), weights.as<const float>(), y.as<T>());
    });
}

// Sets dx to zero first: the host cannot tell which rows `rows` does not name.
void combine_rows_backward(const Stream& stream, View dy, View x, View rows, View weights, View dx, View dweights) {
    const int64_t choices = rows.numel(), C = dx.columns();
    if (dx.numel() > 0) cuda_table().fill(stream, dx, 0);
    if (choices == 0 || C == 0) return;
    with_type(dx.dtype, [&]<class T>(T) {
        with_team<T>(C, rows_aligned<T>(C, dy.data, x.data, dx.data), [&]<class Team>(Team, auto width) {
            launch(combine_backward_kernel<Team, width(), T>, grid_of_rows<Team>(choices), stream, choices, C,
                   rows.shape[1], dy.as<const T>(), x.as<const T>(), rows.as<const int32_t>(),
                   weights.as<const float>(), dx.as<T>(), dweights.as<float>());
        });
    });
}

}  // namespace

void fill_expert_rows(KernelTable& table) {
    table.gather_rows = gather_rows;
    table.combine_rows = combine_rows;
    table.combine_rows_backward = combine_rows_backward;
}

}  // namespace tutti::kernels::cuda
