// kernels/cuda/reduction.cu: sums of squares by block, sums without rounding, gradients of biases, squared error.
#include "tutti/base/exact_sum.h"
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
    with_type(dy.dtype, [&]<class T>(T) {
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
    with_type(x.dtype, [&]<class T>(T) {
        with_team<T>(C, rows_aligned<T>(C, x.data, target.data, dx.data), [&]<class Rows>(Rows, auto width) {
            launch(squared_error_kernel<Rows, width(), T>, grid_of_rows<Rows>(N), stream, N, C, x.as<const T>(),
                   target.as<const T>(), grad_scale, losses.as<float>(), dx.as<T>());
        });
    });
}

// Sums without rounding: atomics add integers, whose sum does not depend on the order.
constexpr int kThreads = 256;
constexpr int64_t kTermsOfThread = 32;
constexpr uint32_t kWords = ExactSum::kWords, kDigits = ExactSum::kDigits;

__device__ __forceinline__ void add_words(const ExactSum::Addend& sum, int64_t* words) {
#pragma unroll
    for (uint32_t k = 0; k < 3; ++k)
        if (sum.digits[k] != 0)
            atomicAdd(reinterpret_cast<unsigned long long*>(words + sum.first + k),
                      static_cast<unsigned long long>(sum.digits[k]));
}

// The terms of a sum have similar sizes: a thread keeps the three words that it adds to, and writes to memory when a
// term belongs elsewhere.
template <class T>
__global__ void __launch_bounds__(kThreads) exact_sum_kernel(int64_t n, const T* values, int64_t* words) {
    ExactSum::Addend sum{};
    const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += step) {
        const ExactSum::Addend term = ExactSum::addend(static_cast<double>(values[i]));
        if (term.first != sum.first) {
            add_words(sum, words);
            sum = {term.first, {0, 0, 0}};
        }
#pragma unroll
        for (int k = 0; k < 3; ++k) sum.digits[k] += term.digits[k];
    }
    add_words(sum, words);
}

struct Words {
    int64_t at[kWords];
};
// Reduces all digits but the highest to [0, 2^32), one after another as carries propagate.
__global__ void __launch_bounds__(kWords) carry_kernel(int64_t* words) {
    Words& sum = block_shared<Words>();
    sum.at[threadIdx.x] = words[threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0)
        for (uint32_t k = 0; k + 1 < kDigits; ++k) {
            const int64_t over = sum.at[k] >> 32;
            sum.at[k] -= over * (int64_t{1} << 32);
            sum.at[k + 1] += over;
        }
    __syncthreads();
    words[threadIdx.x] = sum.at[threadIdx.x];
}

void exact_sum(const Stream& stream, View values, View words) {
    const int64_t n = values.numel();
    if (n == 0) return;
    const Grid grid = grid_of_tasks(ceil_div(n, kTermsOfThread), kThreads);
    auto* const sum = words.as<int64_t>();
    if (values.dtype == DType::f32)
        launch(exact_sum_kernel<float>, grid, stream, n, values.as<const float>(), sum);
    else
        launch(exact_sum_kernel<double>, grid, stream, n, values.as<const double>(), sum);
    launch(carry_kernel, {.blocks = dim3(1), .threads = dim3(kWords)}, stream, sum);
}

}  // namespace

void fill_reduction(KernelTable& table) {
    table.sums_of_squares = sums_of_squares;
    table.bias_backward = bias_backward;
    table.squared_error = squared_error;
    table.exact_sum = exact_sum;
}

}  // namespace tutti::kernels::cuda
