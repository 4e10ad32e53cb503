// kernels/cpu/isa/layer_norm.cpp: layer norm (Ba et al. 2016). A row is a few KB: read from memory once, then from L1,
// so the variance takes a pass of its own around the mean and loses nothing to cancellation.
#include "tutti/kernels/cpu/isa/column_sums.h"
#include "tutti/kernels/cpu/isa/norm_rows.h"
#include "tutti/kernels/cpu/isa/parts.h"

namespace tutti::kernels::TUTTI_ISA {
namespace {

// s = x [+ residual];  x^ = (s - mean) rstd, rstd = (mean_c (s - mean)^2 + eps)^(-1/2);  y = x^ w + b
template <int R, class T, class W>
void forward_rows(const LayerNormForward& f, int64_t n) {
    const int64_t width = columns(f.x);
    const auto count = static_cast<float>(width);
    const T* in = summed_rows<T>(f.x, f.residual, f.sum, n, R);
    const W *weight = f.w.as<W>(), *bias = f.b.as<W>();
    T* out = f.y.as<T>() + n * width;
    const Floats<R> totals = row_sums<R>(width, [=](int64_t c, auto part) {
        Vecs<R> x;
        for (int k = 0; k < R; ++k) x.v[k] = load(in + k * width + c, part);
        return x;
    });
    Vecs<R> center, inverse;
    for (int k = 0; k < R; ++k) {
        f.mean.as<float>()[n + k] = totals.v[k] / count;
        center.v[k] = broadcast(totals.v[k] / count);
    }
    const Floats<R> squares = row_sums<R>(width, [=](int64_t c, auto part) {
        Vecs<R> square;
        for (int k = 0; k < R; ++k) {
            const Vec difference = load(in + k * width + c, part) - center.v[k];
            square.v[k] = difference * difference;
        }
        return square;
    });
    for (int k = 0; k < R; ++k) {
        const float r = 1.0f / __builtin_sqrtf(squares.v[k] / count + f.eps);
        f.rstd.as<float>()[n + k] = r;
        inverse.v[k] = broadcast(r);
    }
    for_vectors(0, width, [=](int64_t c, auto part) {
        const Vec w = load(weight + c, part), b = load(bias + c, part);
        for (int k = 0; k < R; ++k) {
            const Vec xhat = (load(in + k * width + c, part) - center.v[k]) * inverse.v[k];
            store_flushed(fma(xhat, w, b), out + k * width + c, part);
        }
    });
}

void layer_norm_forward(const Stream& stream, const LayerNormForward& f) {
    with_type(f.x.dtype, [&]<class T>(Type<T>) {
        with_type(f.w.dtype, [&]<class W>(Type<W>) {
            for_rows_parallel(stream, rows(f.x), columns(f.x),
                              [&]<int R>(Rows<R>, int64_t n) { forward_rows<R, T, W>(f, n); });
        });
    });
}

// With g = dy w:  dx = [add +] rstd (g - mean_c g - x^ mean_c (g x^))
template <int R, class T, class W>
void backward_rows(const LayerNormBackward& b, int64_t n) {
    const int64_t width = columns(b.x);
    const auto count = static_cast<float>(width);
    const T *dy = b.dy.as<T>() + n * width, *in = b.x.as<T>() + n * width, *add = row_or_null<T>(b.add, n);
    const W* weight = b.w.as<W>();
    T* out = b.dx.as<T>() + n * width;
    Vecs<R> center, inverse;
    for (int k = 0; k < R; ++k) {
        center.v[k] = broadcast(b.mean.as<float>()[n + k]);
        inverse.v[k] = broadcast(b.rstd.as<float>()[n + k]);
    }
    const auto sums = row_sums<2 * R>(width, [=](int64_t c, auto part) {  // of g and of g x^
        const Vec w = load(weight + c, part);
        Vecs<2 * R> terms;
        for (int k = 0; k < R; ++k) {
            const Vec g = load(dy + k * width + c, part) * w;
            terms.v[k] = g;
            terms.v[R + k] = g * ((load(in + k * width + c, part) - center.v[k]) * inverse.v[k]);
        }
        return terms;
    });
    Vecs<R> mean_g, mean_gx;
    for (int k = 0; k < R; ++k) {
        mean_g.v[k] = broadcast(sums.v[k] / count);
        mean_gx.v[k] = broadcast(sums.v[R + k] / count);
    }
    for_vectors(0, width, [=](int64_t c, auto part) {
        const Vec w = load(weight + c, part);
        for (int k = 0; k < R; ++k) {
            const int64_t i = k * width + c;
            const Vec centered = load(dy + i, part) * w - mean_g.v[k];
            const Vec xhat = (load(in + i, part) - center.v[k]) * inverse.v[k];
            const Vec before = add ? load(add + i, part) : zero();
            store_flushed(fma(inverse.v[k], fma_negative(xhat, mean_gx.v[k], centered), before), out + i, part);
        }
    });
}

void layer_norm_backward_input(const Stream& stream, const LayerNormBackward& b) {
    with_type(b.x.dtype, [&]<class T>(Type<T>) {
        with_type(b.w.dtype, [&]<class W>(Type<W>) {
            for_rows_parallel(stream, rows(b.x), columns(b.x),
                              [&]<int R>(Rows<R>, int64_t n) { backward_rows<R, T, W>(b, n); });
        });
    });
}

// dw += sum_n dy x^,  db += sum_n dy
void layer_norm_backward_weight(const Stream& stream, View dy, View x, View mean, View rstd, View dw, View db) {
    const int64_t width = columns(x);
    const float *means = mean.as<float>(), *inverses = rstd.as<float>();
    with_type(x.dtype, [&](auto type) {
        using T = typename decltype(type)::type;
        const T *gradients = dy.as<T>(), *in = x.as<T>();
        const Targets<2> targets = {{dw.as<float>(), db.as<float>()}};
        add_column_sums<2>(stream, rows(x), width, targets, [=](int64_t n, int64_t c, auto part) {
            const Vec d = load(gradients + n * width + c, part);
            const Vec xhat = (load(in + n * width + c, part) - broadcast(means[n])) * broadcast(inverses[n]);
            return Vecs<2>{{d * xhat, d}};
        });
    });
}

}  // namespace

void fill_layer_norm(KernelTable& table) {
    table.layer_norm_forward = layer_norm_forward;
    table.layer_norm_backward_input = layer_norm_backward_input;
    table.layer_norm_backward_weight = layer_norm_backward_weight;
}

}  // namespace tutti::kernels::TUTTI_ISA
