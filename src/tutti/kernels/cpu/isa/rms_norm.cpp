// kernels/cpu/isa/rms_norm.cpp: RMS norm (Zhang and Sennrich 2019). A row is read from memory once, then
// from L1.
#include "tutti/kernels/cpu/isa/column_sums.h"
#include "tutti/kernels/cpu/isa/norm_rows.h"
#include "tutti/kernels/cpu/isa/parts.h"

namespace tutti::kernels::TUTTI_ISA {
namespace {

// s = x [+ residual];  x^ = s rstd, rstd = (mean_c s^2 + eps)^(-1/2);  y = x^ w
template <int R, class T, class W>
void forward_rows(const RmsNormForward& f, int64_t n) {
    const int64_t width = columns(f.x);
    const T* in = summed_rows<T>(f.x, f.residual, f.sum, n, R);
    const W* weight = f.w.as<W>();
    T* out = f.y.as<T>() + n * width;
    const Floats<R> squares = row_sums<R>(width, [=](int64_t c, auto part) {
        Vecs<R> square;
        for (int k = 0; k < R; ++k) {
            const Vec v = load(in + k * width + c, part);
            square.v[k] = v * v;
        }
        return square;
    });
    Vecs<R> inverse;
    for (int k = 0; k < R; ++k) {
        const float r = 1.0f / __builtin_sqrtf(squares.v[k] / static_cast<float>(width) + f.eps);
        f.rstd.as<float>()[n + k] = r;
        inverse.v[k] = broadcast(r);
    }
    for_vectors(0, width, [=](int64_t c, auto part) {
        const Vec w = load(weight + c, part);
        for (int k = 0; k < R; ++k)
            store_flushed(load(in + k * width + c, part) * inverse.v[k] * w, out + k * width + c, part);
    });
}

void rms_norm_forward(const Stream& stream, const RmsNormForward& f) {
    with_type(f.x.dtype, [&]<class T>(Type<T>) {
        with_type(f.w.dtype, [&]<class W>(Type<W>) {
            for_rows_parallel(stream, rows(f.x), columns(f.x),
                              [&]<int R>(Rows<R>, int64_t n) { forward_rows<R, T, W>(f, n); });
        });
    });
}

// With g = dy w:  dx = [add +] rstd (g - x^ mean_c (g x^))
template <int R, class T, class W>
void backward_rows(const RmsNormBackward& b, int64_t n) {
    const int64_t width = columns(b.x);
    const T *dy = b.dy.as<T>() + n * width, *in = b.x.as<T>() + n * width, *add = row_or_null<T>(b.add, n);
    const W* weight = b.w.as<W>();
    T* out = b.dx.as<T>() + n * width;
    Vecs<R> inverse;
    for (int k = 0; k < R; ++k) inverse.v[k] = broadcast(b.rstd.as<float>()[n + k]);
    const Floats<R> sums = row_sums<R>(width, [=](int64_t c, auto part) {
        const Vec w = load(weight + c, part);
        Vecs<R> gx;
        for (int k = 0; k < R; ++k)
            gx.v[k] = load(dy + k * width + c, part) * w * (load(in + k * width + c, part) * inverse.v[k]);
        return gx;
    });
    Vecs<R> mean_gx;
    for (int k = 0; k < R; ++k) mean_gx.v[k] = broadcast(sums.v[k] / static_cast<float>(width));
    for_vectors(0, width, [=](int64_t c, auto part) {
        const Vec w = load(weight + c, part);
        for (int k = 0; k < R; ++k) {
            const int64_t i = k * width + c;
            const Vec g = load(dy + i, part) * w, xhat = load(in + i, part) * inverse.v[k];
            const Vec before = add ? load(add + i, part) : zero();
            store_flushed(fma(inverse.v[k], fma_negative(xhat, mean_gx.v[k], g), before), out + i, part);
        }
    });
}

void rms_norm_backward_input(const Stream& stream, const RmsNormBackward& b) {
    with_type(b.x.dtype, [&]<class T>(Type<T>) {
        with_type(b.w.dtype, [&]<class W>(Type<W>) {
            for_rows_parallel(stream, rows(b.x), columns(b.x),
                              [&]<int R>(Rows<R>, int64_t n) { backward_rows<R, T, W>(b, n); });
        });
    });
}

// dw += sum_n dy x^
void rms_norm_backward_weight(const Stream& stream, View dy, View x, View rstd, View dw) {
    const int64_t width = columns(x);
    const float* inverses = rstd.as<float>();
    with_type(x.dtype, [&](auto type) {
        using T = typename decltype(type)::type;
        const T *gradients = dy.as<T>(), *in = x.as<T>();
        add_column_sums<1>(stream, rows(x), width, {{dw.as<float>()}}, [=](int64_t n, int64_t c, auto part) {
            const Vec xhat = load(in + n * width + c, part) * broadcast(inverses[n]);
            return Vecs<1>{{load(gradients + n * width + c, part) * xhat}};
        });
    });
}

}  // namespace

void fill_rms_norm(KernelTable& table) {
    table.rms_norm_forward = rms_norm_forward;
    table.rms_norm_backward_input = rms_norm_backward_input;
    table.rms_norm_backward_weight = rms_norm_backward_weight;
}

}  // namespace tutti::kernels::TUTTI_ISA
