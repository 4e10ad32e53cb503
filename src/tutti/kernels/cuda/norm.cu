// kernels/cuda/norm.cu: layer norm and RMS norm, whose rows are not centred, forward and backward; formulas as in
// kernels/reference/norm.cpp. A row is read from memory once and from the cache afterwards: the mean is needed before
// the deviations are squared.
#include "tutti/kernels/cuda/column_sums.h"
#include "tutti/kernels/cuda/fill.h"

namespace tutti::kernels::cuda {

namespace {

// x - mean; x itself where rows are not centred.
template <bool kCentred>
__device__ __forceinline__ float deviation(float x, float mean) {
    return kCentred ? x - mean : x;
}

// Weights of which row n, below 2^32 where there are groups, has those of group n % groups.
template <class T>
struct Weights {
    const T* data;
    unsigned groups;
    __device__ unsigned first_of(int64_t n, int64_t columns) const {
        return groups == 1 ? 0 : static_cast<unsigned>(n) % groups * static_cast<unsigned>(columns);
    }
};
template <class T>
Weights<T> weights_of(const View& w, int64_t columns) {
    return {w.as<const T>(), columns == 0 ? 1 : static_cast<unsigned>(w.numel() / columns)};
}

template <bool kCentred, class Team, int N, class T>
__global__ void __launch_bounds__(Team::kBlockThreads)
    norm_kernel(int64_t rows, int64_t columns, const T* x, const T* residual, T* sum, Weights<T> w, const T* b,
                float eps, float offset, T* y, float* mean, float* rstd) {
    const int64_t n = Team::row(), row = n * columns;
    if (n >= rows) return;
    const auto C = static_cast<float>(columns);
    float m = 0, squares = 0;
    const T* const normalised = residual == nullptr ? x : sum;  // a thread reads only its own writes here
    for_columns<Team, N>(columns, [&](int64_t c) {
        float s[N];
        load_sum<N>(x, residual, sum, row + c, s);
#pragma unroll
        for (int k = 0; k < N; ++k)
            if constexpr (kCentred)
                m += s[k];
            else
                squares += s[k] * s[k];
    });
    if constexpr (kCentred) {
        m = Team::sum(m) / C;
        for_columns<Team, N>(columns, [&](int64_t c) {
            float s[N];
            load<N>(normalised + row + c, s);
#pragma unroll
            for (int k = 0; k < N; ++k) squares += (s[k] - m) * (s[k] - m);
        });
    }
    const float r = 1 / sqrtf(Team::sum(squares) / C + eps);
    const unsigned first = w.first_of(n, columns);
    for_columns<Team, N>(columns, [&](int64_t c) {
        float s[N], weight[N], bias[N];
        load<N>(normalised + row + c, s);
        load<N>(w.data + first + c, weight);
        if constexpr (kCentred) load<N>(b + c, bias);
#pragma unroll
        for (int k = 0; k < N; ++k) {
            s[k] = deviation<kCentred>(s[k], m) * r * (weight[k] + offset);
            if constexpr (kCentred) s[k] += bias[k];
        }
        store<N>(s, y + row + c);
    });
    if (Team::rank() == 0) {
        if constexpr (kCentred) mean[n] = m;
        rstd[n] = r;
    }
}

// With g = dy (w + offset):  dx = [add +] rstd (g - mean_c g - x^ mean_c (g x^)), without mean_c g where rows are not
// centred.
template <bool kCentred, class Team, int N, class T>
__global__ void __launch_bounds__(Team::kBlockThreads)
    norm_input_kernel(int64_t rows, int64_t columns, const T* dy, const T* x, Weights<T> w, const float* mean,
                      const float* rstd, const T* add, float offset, T* dx) {
    const int64_t n = Team::row();
    if (n >= rows) return;
    const float m = kCentred ? mean[n] : 0, r = rstd[n], C = static_cast<float>(columns);
    const unsigned first = w.first_of(n, columns);
    const auto load_row = [&](int64_t c, float(&g)[N], float(&xhat)[N]) {
        float weight[N];
        load<N>(dy + n * columns + c, g);
        load<N>(x + n * columns + c, xhat);
        load<N>(w.data + first + c, weight);
#pragma unroll
        for (int k = 0; k < N; ++k) {
            g[k] *= weight[k] + offset;
            xhat[k] = deviation<kCentred>(xhat[k], m) * r;
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
    const float mean_g = kCentred ? Team::sum(sum_g) / C : 0, mean_gx = Team::sum(sum_gx) / C;
    for_columns<Team, N>(columns, [&](int64_t c) {
        float g[N], xhat[N];
        load_row(c, g, xhat);
        float before[N];
        load_or_zero<N>(add, n * columns + c, before);
#pragma unroll
        for (int k = 0; k < N; ++k) g[k] = before[k] + r * (deviation<kCentred>(g[k], mean_g) - xhat[k] * mean_gx);
        store<N>(g, dx + n * columns + c);
    });
}

// dw += sum_n dy x^;  db += sum_n dy where rows are centred
template <bool kCentred, class T>
struct WeightTerms {
    static constexpr int kSums = kCentred ? 2 : 1;
    const T *dy, *x;
    const float *mean, *rstd;
    int64_t columns, groups, group;
    template <int N>
    __device__ void operator()(int64_t token, int64_t c, float (&out)[kSums][N]) const {
        const int64_t n = token * groups + group;
        float d[N], in[N];
        load<N>(dy + n * columns + c, d);
        load<N>(x + n * columns + c, in);
        const float m = kCentred ? mean[n] : 0, r = rstd[n];
#pragma unroll
        for (int k = 0; k < N; ++k) {
            out[0][k] = d[k] * (deviation<kCentred>(in[k], m) * r);
            if constexpr (kCentred) out[1][k] = d[k];
        }
    }
};

// Calls f(T{}, centred) with a constant: whether `mean_or_bias` is defined.
template <class F>
void with_kind(const View& x, const View& mean_or_bias, F&& f) {
    with_type(x.dtype, [&](auto type) {
        if (mean_or_bias.defined())
            f(type, std::true_type{});
        else
            f(type, std::false_type{});
    });
}

void norm_forward(const Stream& stream, const NormForward& f) {
    const int64_t N = f.x.rows(), C = f.x.columns();
    if (N == 0) return;
    with_kind(f.x, f.mean, [&]<class T>(T, auto centred) {
        const bool wide = rows_aligned<T>(C, f.x.data, f.residual.data, f.sum.data, f.w.data, f.b.data, f.y.data);
        with_team<T>(C, wide, [&]<class Rows>(Rows, auto width) {
            launch(norm_kernel<centred(), Rows, width(), T>, grid_of_rows<Rows>(N), stream, N, C, f.x.as<const T>(),
                   f.residual.as<const T>(), f.sum.as<T>(), weights_of<T>(f.w, C), f.b.as<const T>(), f.eps, f.offset,
                   f.y.as<T>(), f.mean.as<float>(), f.rstd.as<float>());
        });
    });
}

void norm_backward_input(const Stream& stream, const NormBackward& b) {
    const int64_t N = b.x.rows(), C = b.x.columns();
    if (N == 0) return;
    with_kind(b.x, b.mean, [&]<class T>(T, auto centred) {
        const bool wide = rows_aligned<T>(C, b.dy.data, b.x.data, b.w.data, b.add.data, b.dx.data);
        with_team<T>(C, wide, [&]<class Rows>(Rows, auto width) {
            launch(norm_input_kernel<centred(), Rows, width(), T>, grid_of_rows<Rows>(N), stream, N, C,
                   b.dy.as<const T>(), b.x.as<const T>(), weights_of<T>(b.w, C), b.mean.as<const float>(),
                   b.rstd.as<const float>(), b.add.as<const T>(), b.offset, b.dx.as<T>());
        });
    });
}

void norm_backward_weight(const Stream& stream, View dy, View x, View mean, View rstd, View dw, View db) {
    const int64_t N = x.rows(), C = x.columns();
    with_kind(x, db, [&]<class T>(T, auto centred) {
        using Terms = WeightTerms<centred(), T>;
        const int64_t groups = C == 0 ? 0 : dw.numel() / C;
        for (int64_t group = 0; group < groups; ++group) {
            const Terms terms{
                dy.as<const T>(), x.as<const T>(), mean.as<const float>(), rstd.as<const float>(), C, groups, group};
            const SumTargets targets{dw.as<float>() + group * C, db.as<float>()};
            if (rows_aligned<T>(C, dy.data, x.data))
                column_sums<Terms::kSums, kPack<T>>(stream, N / groups, C, terms, targets);
            else
                column_sums<Terms::kSums, 1>(stream, N / groups, C, terms, targets);
        }
    });
}

}  // namespace

void fill_norm(KernelTable& table) {
    table.norm_forward = norm_forward;
    table.norm_backward_input = norm_backward_input;
    table.norm_backward_weight = norm_backward_weight;
}

}  // namespace tutti::kernels::cuda
