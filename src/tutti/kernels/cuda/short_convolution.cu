// kernels/cuda/short_convolution.cu: the gated short convolution of LFM2; formulas as in kernels/kernel_table.h. A
// thread takes some channels of kRows tokens in turn: neighbouring threads take neighbouring channels, and b and x of
// the tokens before are in the cache, since the same block has just read them.
#include "tutti/kernels/cuda/column_sums.h"
#include "tutti/kernels/cuda/element.h"
#include "tutti/kernels/cuda/fill.h"

namespace tutti::kernels::cuda {

namespace {

constexpr int kThreads = 256, kRows = 8;

// A view (B, T, C).
template <class T>
struct Rows3 {
    T* data;
    int64_t sequence, token;  // strides
    __device__ T* at(int64_t n, int64_t t, int64_t c) const { return data + n * sequence + t * token + c; }
};
template <class T>
Rows3<T> rows3(const View& x) {
    if (!x.defined()) return {nullptr, 0, 0};
    return {x.as<T>(), x.stride(0), x.stride(1)};
}

template <class T>
struct Problem {
    int64_t B, tokens, C;
    int taps;
    Rows3<const T> b, c, x;
    const T *w, *bias;
    const int32_t* positions;
    int64_t positions_stride;
    Rows3<const float> before;

    __device__ int64_t position(int64_t n, int64_t t) const { return positions[n * positions_stride + t]; }

    // u of token t; t may lie before the first token.
    template <int N>
    __device__ __forceinline__ void gated(int64_t n, int64_t t, int64_t channel, float (&u)[N]) const {
        if (t < 0) {
            if (before.data != nullptr) return load<N>(before.at(n, taps - 1 + t, channel), u);
#pragma unroll
            for (int k = 0; k < N; ++k) u[k] = 0;
            return;
        }
        load<N>(x.at(n, t, channel), u);
        times_gate<N>(b, n, t, channel, u);
    }
    // values *= those of a gate, b or c; without gates nothing.
    template <int N>
    __device__ __forceinline__ void times_gate(const Rows3<const T>& gate, int64_t n, int64_t t, int64_t channel,
                                               float (&values)[N]) const {
        if (gate.data == nullptr) return;
        float factors[N];
        load<N>(gate.at(n, t, channel), factors);
#pragma unroll
        for (int k = 0; k < N; ++k) values[k] *= factors[k];
    }
    __device__ __forceinline__ float weight(int64_t channel, int j) const { return load_one(w + channel * taps + j); }

    // v of token t: the oldest term first, as a chain of multiply-adds.
    template <int N>
    __device__ __forceinline__ void convolved(int64_t n, int64_t t, int64_t channel, float (&v)[N]) const {
        const int64_t position_of_t = position(n, t);
#pragma unroll
        for (int k = 0; k < N; ++k) v[k] = 0;
        for (int lag = taps - 1; lag >= 0; --lag) {
            if (lag > position_of_t || (lag > t && before.data == nullptr)) continue;
            float u[N];
            gated<N>(n, t - lag, channel, u);
#pragma unroll
            for (int k = 0; k < N; ++k) v[k] = fmaf(weight(channel + k, taps - 1 - lag), u[k], v[k]);
        }
        if (bias == nullptr) return;
        float add[N];
        load<N>(bias + channel, add);
#pragma unroll
        for (int k = 0; k < N; ++k) v[k] += add[k];
    }
    // dv of token t.
    template <int N>
    __device__ __forceinline__ void gradient_of_convolved(const Rows3<const T>& dz, int64_t n, int64_t t,
                                                          int64_t channel, float (&dv)[N]) const {
        load<N>(dz.at(n, t, channel), dv);
        times_gate<N>(c, n, t, channel, dv);
    }
    // Adds the contribution of this call's tokens to du of token s, the longest lag first; s may lie before the first
    // token.
    template <int N>
    __device__ __forceinline__ void add_gradient_of_gated(const Rows3<const T>& dz, int64_t n, int64_t s,
                                                          int64_t channel, float (&du)[N]) const {
        for (int lag = taps - 1; lag >= 0; --lag) {
            const int64_t t = s + lag;
            if (t < 0 || t >= tokens || lag > position(n, t)) continue;
            float dv[N];
            gradient_of_convolved<N>(dz, n, t, channel, dv);
#pragma unroll
            for (int k = 0; k < N; ++k) du[k] = fmaf(weight(channel + k, taps - 1 - lag), dv[k], du[k]);
        }
    }
};

template <class T>
struct Gradients {
    Rows3<const T> dz;
    Rows3<T> db, dc, dx;
    Rows3<const float> after;
};

// body(sequence, token, channel) for the thread's tokens of (B, tokens, channels), W channels at a time.
template <int W, class Body>
__device__ __forceinline__ void for_tokens(int64_t B, int64_t tokens, int64_t channels, Body&& body) {
    const int64_t task = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, words = channels / W;
    const int64_t channel = task % words * W, first = task / words * kRows;
    for (int64_t i = first; i < first + kRows && i < B * tokens; ++i) body(i / tokens, i % tokens, channel);
}
template <int W>
Grid grid_of_tokens(int64_t B, int64_t tokens, int64_t channels) {
    const int64_t tasks = ceil_div(B * tokens, kRows) * (channels / W);
    return grid_of_tasks(tasks, kThreads);
}

template <int N, class T>
__global__ void __launch_bounds__(kThreads) forward_kernel(Problem<T> f, Rows3<T> z) {
    for_tokens<N>(f.B, f.tokens, f.C, [&](int64_t n, int64_t t, int64_t channel) {
        float v[N];
        f.template convolved<N>(n, t, channel, v);
        f.template times_gate<N>(f.c, n, t, channel, v);
        store_whole<N>(v, z.at(n, t, channel));
    });
}

template <int N, class T>
__global__ void __launch_bounds__(kThreads) backward_kernel(Problem<T> f, Gradients<T> g) {
    for_tokens<N>(f.B, f.tokens, f.C, [&](int64_t n, int64_t s, int64_t channel) {
        const int64_t row = s - f.tokens + f.taps - 1;  // of `after`
        float du[N] = {}, b[N], x[N], v[N];
        if (g.after.data != nullptr && row >= 0) load<N>(g.after.at(n, row, channel), du);
        f.template add_gradient_of_gated<N>(g.dz, n, s, channel, du);
        if (f.b.data == nullptr) return store_whole<N>(du, g.dx.at(n, s, channel));
        load<N>(f.b.at(n, s, channel), b);
        load<N>(f.x.at(n, s, channel), x);
#pragma unroll
        for (int k = 0; k < N; ++k) {
            x[k] *= du[k];
            b[k] *= du[k];
        }
        store_whole<N>(x, g.db.at(n, s, channel));
        store_whole<N>(b, g.dx.at(n, s, channel));
        f.template convolved<N>(n, s, channel, v);
        load<N>(g.dz.at(n, s, channel), b);
#pragma unroll
        for (int k = 0; k < N; ++k) v[k] *= b[k];
        store_whole<N>(v, g.dc.at(n, s, channel));
    });
}

template <class T>
__global__ void __launch_bounds__(kThreads) before_kernel(Problem<T> f, Rows3<const T> dz, Rows3<float> dbefore) {
    for_tokens<1>(f.B, f.taps - 1, f.C, [&](int64_t n, int64_t row, int64_t channel) {
        float du[1] = {};
        f.template add_gradient_of_gated<1>(dz, n, row - (f.taps - 1), channel, du);
        *dbefore.at(n, row, channel) = du[0];
    });
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    state_kernel(int64_t B, int64_t kept, int64_t channels, int64_t added, Rows3<const T> b, Rows3<const T> x,
                 Rows3<const float> before, Rows3<float> state) {
    for_tokens<1>(B, kept, channels, [&](int64_t n, int64_t row, int64_t channel) {
        const int64_t t = row - kept + added;  // of b and x
        float u = 0;
        if (t >= 0)
            u = load_one(x.at(n, t, channel)) * (b.data == nullptr ? 1 : load_one(b.at(n, t, channel)));
        else if (before.data != nullptr)
            u = *before.at(n, kept + t, channel);
        *state.at(n, row, channel) = u;
    });
}

template <class T>
Problem<T> problem_of(const ShortConvolution& f) {
    check(f.positions.dtype == DType::i32, "short_convolution: positions must be i32, got ", f.positions.dtype);
    return {.B = f.x.shape[0],
            .tokens = f.x.shape[1],
            .C = f.x.shape[2],
            .taps = static_cast<int>(f.w.shape[1]),
            .b = rows3<const T>(f.b),
            .c = rows3<const T>(f.c),
            .x = rows3<const T>(f.x),
            .w = f.w.as<const T>(),
            .bias = f.bias.as<const T>(),
            .positions = f.positions.as<const int32_t>(),
            .positions_stride = f.positions.stride(0),
            .before = rows3<const float>(f.before)};
}

// Whether C channels of every view can be read in whole 16-byte words of N elements.
template <int N>
bool wide(int64_t C, std::initializer_list<View> views) {
    bool all = C % N == 0;
    for (const View& v : views) {
        if (!v.defined()) continue;
        all = all && is_aligned(v.data);
        for (int dim = 0; dim + 1 < v.shape.rank() && v.shape.rank() == 3; ++dim) all = all && v.stride(dim) % N == 0;
    }
    return all;
}

void forward(const Stream& stream, const ShortConvolution& f, View z) {
    if (f.x.numel() == 0) return;
    with_type(f.x.dtype, [&]<class T>(T) {
        const Problem<T> p = problem_of<T>(f);
        constexpr int N = kPack<T>;
        if (wide<N>(p.C, {f.b, f.c, f.x, f.bias, f.before, z}))
            launch(forward_kernel<N, T>, grid_of_tokens<N>(p.B, p.tokens, p.C), stream, p, rows3<T>(z));
        else
            launch(forward_kernel<1, T>, grid_of_tokens<1>(p.B, p.tokens, p.C), stream, p, rows3<T>(z));
    });
}

void backward_input(const Stream& stream, const ShortConvolution& f, const ShortConvolutionBackward& g) {
    if (f.x.numel() == 0) return;
    with_type(f.x.dtype, [&]<class T>(T) {
        const Problem<T> p = problem_of<T>(f);
        const Gradients<T> to{rows3<const T>(g.dz), rows3<T>(g.db), rows3<T>(g.dc), rows3<T>(g.dx),
                              rows3<const float>(g.after)};
        constexpr int N = kPack<T>;
        if (wide<N>(p.C, {f.b, f.c, f.x, f.bias, f.before, g.dz, g.db, g.dc, g.dx, g.after}))
            launch(backward_kernel<N, T>, grid_of_tokens<N>(p.B, p.tokens, p.C), stream, p, to);
        else
            launch(backward_kernel<1, T>, grid_of_tokens<1>(p.B, p.tokens, p.C), stream, p, to);
    });
}

void backward_before(const Stream& stream, const ShortConvolution& f, View dz, View dbefore) {
    if (dbefore.numel() == 0) return;
    with_type(f.x.dtype, [&]<class T>(T) {
        const Problem<T> p = problem_of<T>(f);
        launch(before_kernel<T>, grid_of_tokens<1>(p.B, p.taps - 1, p.C), stream, p, rows3<const T>(dz),
               rows3<float>(dbefore));
    });
}

// The terms of tap j, and without a tap (-1) of the bias.
template <class T>
struct WeightTerms {
    Problem<T> f;
    Rows3<const T> dz;
    int tap;
    template <int N>
    __device__ void operator()(int64_t row, int64_t channel, float (&out)[1][N]) const {
        const int64_t n = row / f.tokens, t = row % f.tokens, lag = f.taps - 1 - tap;
        f.template gradient_of_convolved<N>(dz, n, t, channel, out[0]);
        if (tap < 0) return;
        float u[N] = {};
        if (lag <= f.position(n, t)) f.template gated<N>(n, t - lag, channel, u);
#pragma unroll
        for (int k = 0; k < N; ++k) out[0][k] *= u[k];
    }
};

// A pass for each tap: of K - 1 of them b, x, c and dz come from the L2 cache where they fit.
void backward_weight(const Stream& stream, const ShortConvolution& f, View dz, View dw, View dbias) {
    with_type(f.x.dtype, [&]<class T>(T) {
        const Problem<T> p = problem_of<T>(f);
        constexpr int N = kPack<T>;
        const bool words = wide<N>(p.C, {f.b, f.c, f.x, f.before, dz});
        const auto add = [&](int tap, const SumTargets& targets) {
            const WeightTerms<T> terms{p, rows3<const T>(dz), tap};
            if (words)
                column_sums<1, N>(stream, p.B * p.tokens, p.C, terms, targets);
            else
                column_sums<1, 1>(stream, p.B * p.tokens, p.C, terms, targets);
        };
        for (int j = 0; j < p.taps; ++j) add(j, {.first = dw.as<float>() + j, .step = p.taps});
        if (dbias.defined()) add(-1, {.first = dbias.as<float>()});
    });
}

void state_of(const Stream& stream, View b, View x, View before, View state) {
    if (state.numel() == 0) return;
    with_type(x.dtype, [&]<class T>(T) {
        const int64_t B = state.shape[0], kept = state.shape[1], C = state.shape[2];
        launch(state_kernel<T>, grid_of_tokens<1>(B, kept, C), stream, B, kept, C, x.shape[1], rows3<const T>(b),
               rows3<const T>(x), rows3<const float>(before), rows3<float>(state));
    });
}

}  // namespace

void fill_short_convolution(KernelTable& table) {
    table.short_convolution_forward = forward;
    table.short_convolution_backward_input = backward_input;
    table.short_convolution_backward_before = backward_before;
    table.short_convolution_backward_weight = backward_weight;
    table.short_convolution_state = state_of;
}

}  // namespace tutti::kernels::cuda
