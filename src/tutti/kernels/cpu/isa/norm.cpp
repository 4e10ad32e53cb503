// kernels/cpu/isa/norm.cpp: layer norm (Ba et al. 2016) and RMS norm (Zhang and Sennrich 2019), which has no mean: its
// rows are not `centred`. A row is a few KB, read from memory once and then from the L1, so the variance is computed
// around the mean in a second pass and does not suffer from cancellation.
#include "tutti/kernels/cpu/isa/column_sums.h"
#include "tutti/kernels/cpu/isa/loops.h"
#include "tutti/kernels/cpu/isa/parts.h"

namespace tutti::kernels::TUTTI_ISA {
namespace {

// Rows [n, n + count) of the norm's input: x, or sum = x + residual, which is computed here and stays in the L1.
template <class T>
[[gnu::always_inline]] inline const T* summed_rows(const NormForward& f, int64_t n, int64_t count) {
    const int64_t width = columns(f.x), begin = n * width;
    if (!f.residual.data) return f.x.as<T>() + begin;
    const T *left = f.x.as<T>(), *right = f.residual.as<T>();
    T* out = f.sum.as<T>();
    for_vectors(begin, begin + count * width, [=](int64_t i, auto part) {
        store_flushed(load(left + i, part) + load(right + i, part), out + i, part);
    });
    return out + begin;
}

// s - mean; s itself where rows are not centred.
template <bool centred>
[[gnu::always_inline]] inline Vec deviation(Vec s, Vec mean) {
    if constexpr (centred) s = s - mean;
    return s;
}

// The weights of R rows from n on: where there are groups, R is 1.
template <class T>
[[gnu::always_inline]] inline const T* weights_of(const View& w, int64_t n, int64_t width) {
    const int64_t all = numel(w);
    return w.as<T>() + (all == width ? 0 : n * width % all);
}

// s = x [+ residual];  x^ = (s - mean) rstd, rstd = (mean_c (s - mean)^2 + eps)^(-1/2);  y = x^ (w + offset) + b
template <int R, bool centred, class T>
void forward_rows(const NormForward& f, int64_t n) {
    const int64_t width = columns(f.x);
    const auto count = static_cast<float>(width);
    const T* in = summed_rows<T>(f, n, R);
    const T *weight = weights_of<T>(f.w, n, width), *bias = f.b.as<T>();
    T* out = f.y.as<T>() + n * width;
    Vecs<R> mean, inverse;
    if constexpr (centred) {
        const Floats<R> totals = row_sums<R>(width, [=](int64_t c, auto part) {
            Vecs<R> x;
            for (int k = 0; k < R; ++k) x.v[k] = load(in + k * width + c, part);
            return x;
        });
        for (int k = 0; k < R; ++k) {
            f.mean.as<float>()[n + k] = totals.v[k] / count;
            mean.v[k] = broadcast(totals.v[k] / count);
        }
    }
    const Floats<R> squares = row_sums<R>(width, [=](int64_t c, auto part) {
        Vecs<R> square;
        for (int k = 0; k < R; ++k) {
            const Vec difference = deviation<centred>(load(in + k * width + c, part), mean.v[k]);
            square.v[k] = difference * difference;
        }
        return square;
    });
    for (int k = 0; k < R; ++k) {
        const float r = 1.0f / __builtin_sqrtf(squares.v[k] / count + f.eps);
        f.rstd.as<float>()[n + k] = r;
        inverse.v[k] = broadcast(r);
    }
    const Vec offset = broadcast(f.offset);
    for_vectors(0, width, [=](int64_t c, auto part) {
        const Vec w = load(weight + c, part) + offset;
        Vec b;
        if constexpr (centred) b = load(bias + c, part);
        for (int k = 0; k < R; ++k) {
            const Vec xhat = deviation<centred>(load(in + k * width + c, part), mean.v[k]) * inverse.v[k];
            store_flushed(centred ? fma(xhat, w, b) : xhat * w, out + k * width + c, part);
        }
    });
}

// With g = dy (w + offset):  dx = [add +] rstd (g - mean_c g - x^ mean_c (g x^)), without mean_c g where rows are not
// centred.
template <int R, bool centred, class T>
void backward_rows(const NormBackward& b, int64_t n) {
    const int64_t width = columns(b.x);
    const auto count = static_cast<float>(width);
    const T *dy = b.dy.as<T>() + n * width, *in = b.x.as<T>() + n * width;
    const T* weight = weights_of<T>(b.w, n, width);
    const T* add = b.add.data ? b.add.as<T>() + n * width : nullptr;
    T* out = b.dx.as<T>() + n * width;
    const Vec offset = broadcast(b.offset);
    Vecs<R> mean, inverse;
    for (int k = 0; k < R; ++k) {
        if constexpr (centred) mean.v[k] = broadcast(b.mean.as<float>()[n + k]);
        inverse.v[k] = broadcast(b.rstd.as<float>()[n + k]);
    }
    constexpr int kSums = centred ? 2 * R : R;
    const auto sums = row_sums<kSums>(width, [=](int64_t c, auto part) {  // of g x^ and, for its mean, of g
        const Vec w = load(weight + c, part) + offset;
        Vecs<kSums> terms;
        for (int k = 0; k < R; ++k) {
            const Vec g = load(dy + k * width + c, part) * w;
            terms.v[k] = g * (deviation<centred>(load(in + k * width + c, part), mean.v[k]) * inverse.v[k]);
            if constexpr (centred) terms.v[R + k] = g;
        }
        return terms;
    });
    Vecs<R> mean_g, mean_gx;
    for (int k = 0; k < R; ++k) {
        mean_gx.v[k] = broadcast(sums.v[k] / count);
        if constexpr (centred) mean_g.v[k] = broadcast(sums.v[R + k] / count);
    }
    for_vectors(0, width, [=](int64_t c, auto part) {
        const Vec w = load(weight + c, part) + offset;
        for (int k = 0; k < R; ++k) {
            const int64_t i = k * width + c;
            const Vec g = deviation<centred>(load(dy + i, part) * w, mean_g.v[k]);
            const Vec xhat = deviation<centred>(load(in + i, part), mean.v[k]) * inverse.v[k];
            const Vec before = add ? load(add + i, part) : zero();
            store_flushed(fma(inverse.v[k], fma_negative(xhat, mean_gx.v[k], g), before), out + i, part);
        }
    });
}

// dw += sum_n dy x^;  db += sum_n dy where rows are centred
template <bool centred, class T>
void add_to_weight(const Stream& stream, View dy, View x, View mean, View rstd, View dw, View db) {
    constexpr int kSums = centred ? 2 : 1;
    const int64_t width = columns(x), groups = width == 0 ? 0 : numel(dw) / width;
    const float *means = mean.as<float>(), *inverses = rstd.as<float>();
    const T *gradients = dy.as<T>(), *in = x.as<T>();
    for (int64_t group = 0; group < groups; ++group) {
        Targets<kSums> targets;
        targets.p[0] = dw.as<float>() + group * width;
        if constexpr (centred) targets.p[1] = db.as<float>();
        add_column_sums<kSums>(stream, rows(x) / groups, width, targets, [=](int64_t token, int64_t c, auto part) {
            const int64_t n = token * groups + group;
            const Vec d = load(gradients + n * width + c, part);
            Vec s = load(in + n * width + c, part);
            if constexpr (centred) s = s - broadcast(means[n]);
            Vecs<kSums> terms;
            terms.v[0] = d * (s * broadcast(inverses[n]));
            if constexpr (centred) terms.v[1] = d;
            return terms;
        });
    }
}

// run(Rows<R>, n) for all rows, several at once where all have the same weights.
template <class Run>
void for_rows_of(const Stream& stream, const View& x, const View& w, const Run& run) {
    for_rows_parallel(stream, rows(x), columns(x), [&]<int R>(Rows<R> several, int64_t n) {
        if (numel(w) == columns(x)) return run(several, n);
        for (int64_t row = n; row < n + R; ++row) run(Rows<1>{}, row);
    });
}

void norm_forward(const Stream& stream, const NormForward& f) {
    with_type(f.x.dtype, [&]<class T>(Type<T>) {
        for_rows_of(stream, f.x, f.w, [&]<int R>(Rows<R>, int64_t n) {
            f.mean.data ? forward_rows<R, true, T>(f, n) : forward_rows<R, false, T>(f, n);
        });
    });
}

void norm_backward_weight(const Stream& stream, View dy, View x, View mean, View rstd, View dw, View db) {
    with_type(x.dtype, [&]<class T>(Type<T>) {
        const auto add = db.data ? add_to_weight<true, T> : add_to_weight<false, T>;
        add(stream, dy, x, mean, rstd, dw, db);
    });
}

void norm_backward_input(const Stream& stream, const NormBackward& b) {
    with_type(b.x.dtype, [&]<class T>(Type<T>) {
        for_rows_of(stream, b.x, b.w, [&]<int R>(Rows<R>, int64_t n) {
            b.mean.data ? backward_rows<R, true, T>(b, n) : backward_rows<R, false, T>(b, n);
        });
    });
    if (b.dw.data) norm_backward_weight(stream, b.dy, b.x, b.mean, b.rstd, b.dw, b.db);
}

}  // namespace

void fill_norm(KernelTable& table) {
    table.norm_forward = norm_forward;
    table.norm_backward_input = norm_backward_input;
    table.norm_backward_weight = norm_backward_weight;
}

}  // namespace tutti::kernels::TUTTI_ISA
