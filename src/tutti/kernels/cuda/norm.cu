// kernels/cuda/norm.cu: layer norm and RMS norm, whose rows are not centred, forward and backward; formulas as in
// kernels/reference/norm.cpp. A row is read from memory once and from the cache afterwards: the mean is needed before
// the deviations are squared. The backward of input and weights in one pass holds a row in registers.
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

// --- dx, dw and db in one pass: x and dy are read once ---

inline constexpr int kMostWarps = 16;         // of a block
inline constexpr int64_t kBlockRows = 4;      // a block has at least so many rows
inline constexpr int64_t kRowThreads = 1024;  // of a multiprocessor, half with two words a thread: by their registers

// Sums over a row, of g and of g x^.
struct alignas(8) RowSums {
    float g, gx;
};
// By the warps of a block, of two rows: a warp may be one row ahead of others.
struct RowPartials {
    RowSums of_warp[2][kMostWarps];
};

// The sums of all threads of the block, in the order of the warps. `turn` is 0 and 1 for rows in turn.
__device__ __forceinline__ RowSums sum_of_block(RowSums x, int turn) {
    x = {warp_sum(x.g), warp_sum(x.gx)};
    const int warps = static_cast<int>(blockDim.x) / kWarp;
    if (warps == 1) return x;
    RowSums(&of_warp)[kMostWarps] = block_shared<RowPartials>().of_warp[turn];
    if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = x;
    __syncthreads();
    x = of_warp[0];
    for (int w = 1; w < warps; ++w) x = {x.g + of_warp[w].g, x.gx + of_warp[w].gx};
    return x;
}

// Blocks take rows in turn: row n is that of block n % gridDim.x. A thread has kPacks packs of columns of each of them,
// and in registers the weights there and the sums of dw and db, which it leaves in partials[block][dw, db][column].
template <bool kCentred, int kPacks, int N, class T>
__global__ void __launch_bounds__(kMostWarps* kWarp, kPacks == 1 ? 2 : 1)
    norm_gradients_kernel(int64_t rows, int64_t columns, const T* dy, const T* x, const T* w, const float* mean,
                          const float* rstd, const T* add, float offset, T* dx, float* partials) {
    constexpr int kSums = kCentred ? 2 : 1;
    const auto column = [](int p) { return (static_cast<int64_t>(p) * blockDim.x + threadIdx.x) * N; };
    const auto C = static_cast<float>(columns);
    float weight[kPacks][N] = {}, sums[kSums][kPacks][N] = {};
#pragma unroll
    for (int p = 0; p < kPacks; ++p)
        if (column(p) < columns) load<N>(w + column(p), weight[p]);
    int turn = 0;
    for (int64_t n = blockIdx.x; n < rows; n += gridDim.x, turn ^= 1) {
        const float m = kCentred ? mean[n] : 0, r = rstd[n];
        float d[kPacks][N] = {}, xhat[kPacks][N] = {}, before[kPacks][N] = {};
#pragma unroll
        for (int p = 0; p < kPacks; ++p)
            if (const int64_t at = n * columns + column(p); column(p) < columns) {
                load<N>(dy + at, d[p]);
                load<N>(x + at, xhat[p]);
                load_or_zero<N>(add, at, before[p]);
            }
        RowSums of_row{0, 0};
#pragma unroll
        for (int p = 0; p < kPacks; ++p)
            if (column(p) < columns)
#pragma unroll
                for (int k = 0; k < N; ++k) {
                    xhat[p][k] = deviation<kCentred>(xhat[p][k], m) * r;
                    sums[0][p][k] += d[p][k] * xhat[p][k];
                    if constexpr (kCentred) sums[1][p][k] += d[p][k];
                    d[p][k] *= weight[p][k] + offset;  // g
                    of_row.g += d[p][k];
                    of_row.gx += d[p][k] * xhat[p][k];
                }
        const RowSums all = sum_of_block(of_row, turn);
        const float mean_g = kCentred ? all.g / C : 0, mean_gx = all.gx / C;
#pragma unroll
        for (int p = 0; p < kPacks; ++p)
            if (column(p) < columns) {
#pragma unroll
                for (int k = 0; k < N; ++k)
                    d[p][k] = before[p][k] + r * (deviation<kCentred>(d[p][k], mean_g) - xhat[p][k] * mean_gx);
                store<N>(d[p], dx + n * columns + column(p));
            }
    }
#pragma unroll
    for (int s = 0; s < kSums; ++s)
#pragma unroll
        for (int p = 0; p < kPacks; ++p)
            if (column(p) < columns)
                store<N>(sums[s][p], partials + (static_cast<int64_t>(blockIdx.x) * kSums + s) * columns + column(p));
}

// The sums that blocks left, as rows.
template <int kSums>
struct BlockTerms {
    const float* partials;
    int64_t columns;
    template <int N>
    __device__ void operator()(int64_t block, int64_t c, float (&out)[kSums][N]) const {
#pragma unroll
        for (int s = 0; s < kSums; ++s) load<N>(partials + (block * kSums + s) * columns + c, out[s]);
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

// False, and nothing is done, for rows that cannot be read in whole words or are too long for the threads of a block,
// for weights of groups, and without a workspace.
bool gradients_at_once(const Stream& stream, const NormBackward& b) {
    const int64_t N = b.x.rows(), C = b.x.columns();
    bool done = false;
    with_kind(b.x, b.mean, [&]<class T>(T, auto centred) {
        constexpr int kSums = centred() ? 2 : 1;
        constexpr int64_t kWarpRow = kWarp * kPack<T>;  // columns
        const int64_t fit = stream.workspace_bytes / std::max<int64_t>(1, kSums * C * int64_t{sizeof(float)});
        if (C == 0 || b.dw.numel() != C || C > 2 * kMostWarps * kWarpRow || fit == 0 ||
            !rows_aligned<T>(C, b.dy.data, b.x.data, b.w.data, b.add.data, b.dx.data))
            return;
        const auto with_packs = [&](auto packs) {
            const int64_t threads = ceil_div(C, packs() * kWarpRow) * kWarp;
            const int64_t resident = kMultiprocessors * std::max<int64_t>(1, kRowThreads / packs() / threads);
            const int64_t blocks = std::min({ceil_div(N, kBlockRows), resident, fit});
            auto* const partials = static_cast<float*>(stream.workspace);
            launch(norm_gradients_kernel<centred(), packs(), kPack<T>, T>,
                   {.blocks = dim3(static_cast<unsigned>(blocks)), .threads = dim3(static_cast<unsigned>(threads))},
                   stream, N, C, b.dy.as<const T>(), b.x.as<const T>(), b.w.as<const T>(), b.mean.as<const float>(),
                   b.rstd.as<const float>(), b.add.as<const T>(), b.offset, b.dx.as<T>(), partials);
            Stream without_workspace = stream;  // which is in use
            without_workspace.workspace_bytes = 0;
            column_sums<kSums, kPack<float>>(without_workspace, blocks, C, BlockTerms<kSums>{partials, C},
                                             SumTargets{b.dw.as<float>(), b.db.as<float>()});
        };
        if (C <= kMostWarps * kWarpRow)
            with_packs(std::integral_constant<int, 1>{});
        else
            with_packs(std::integral_constant<int, 2>{});
        done = true;
    });
    return done;
}

void norm_backward_input(const Stream& stream, const NormBackward& b) {
    const int64_t N = b.x.rows(), C = b.x.columns();
    if (N == 0 || (b.dw.defined() && gradients_at_once(stream, b))) return;
    with_kind(b.x, b.mean, [&]<class T>(T, auto centred) {
        const bool wide = rows_aligned<T>(C, b.dy.data, b.x.data, b.w.data, b.add.data, b.dx.data);
        with_team<T>(C, wide, [&]<class Rows>(Rows, auto width) {
            launch(norm_input_kernel<centred(), Rows, width(), T>, grid_of_rows<Rows>(N), stream, N, C,
                   b.dy.as<const T>(), b.x.as<const T>(), weights_of<T>(b.w, C), b.mean.as<const float>(),
                   b.rstd.as<const float>(), b.add.as<const T>(), b.offset, b.dx.as<T>());
        });
    });
    if (b.dw.defined()) norm_backward_weight(stream, b.dy, b.x, b.mean, b.rstd, b.dw, b.db);
}

}  // namespace

void fill_norm(KernelTable& table) {
    table.norm_forward = norm_forward;
    table.norm_backward_input = norm_backward_input;
    table.norm_backward_weight = norm_backward_weight;
}

}  // namespace tutti::kernels::cuda
