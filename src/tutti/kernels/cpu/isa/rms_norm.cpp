// kernels/cpu/isa/rms_norm.cpp: RMS norm (Zhang and Sennrich 2019). A row is read from memory once, then from L1.
#include "tutti/kernels/cpu/fill.h"
#include "tutti/kernels/cpu/isa/column_sums.h"
#include "tutti/kernels/cpu/isa/loops.h"

namespace tutti::kernels::TUTTI_ISA {
namespace {

// x^ = x rstd, rstd = (mean_c x^2 + eps)^(-1/2);  y = x^ w
void rms_norm_forward(const Stream& stream, View x, View w, float eps, View y, View rstd) {
    const int64_t width = columns(x);
    with_type(x.dtype, [&](auto x_type) {
        with_type(w.dtype, [&](auto w_type) {
            using T = typename decltype(x_type)::type;
            const auto* weight = w.as<typename decltype(w_type)::type>();
            parallel_for(stream, rows(x), row_grain(width), [&](int64_t begin, int64_t end) {
                for (int64_t n = begin; n < end; ++n) {
                    const T* in = x.as<T>() + n * width;
                    T* out = y.as<T>() + n * width;
                    const float squares = row_sum(width, [=](int64_t c, auto part) {
                        const Vec v = load(in + c, part);
                        return v * v;
                    });
                    const float r = 1.0f / __builtin_sqrtf(squares / static_cast<float>(width) + eps);
                    const Vec inverse = broadcast(r);
                    for_vectors(0, width, [=](int64_t c, auto part) {
                        store(load(in + c, part) * inverse * load(weight + c, part), out + c, part);
                    });
                    rstd.as<float>()[n] = r;
                }
            });
        });
    });
}

// With g = dy w:  dx = rstd (g - x^ mean_c (g x^))
void rms_norm_backward_input(const Stream& stream, View dy, View x, View w, View rstd, View dx) {
    const int64_t width = columns(x);
    with_type(x.dtype, [&](auto x_type) {
        with_type(w.dtype, [&](auto w_type) {
            using T = typename decltype(x_type)::type;
            const auto* weight = w.as<typename decltype(w_type)::type>();
            parallel_for(stream, rows(x), row_grain(width), [&](int64_t begin, int64_t end) {
                for (int64_t n = begin; n < end; ++n) {
                    const T *gradient = dy.as<T>() + n * width, *in = x.as<T>() + n * width;
                    T* out = dx.as<T>() + n * width;
                    const Vec inverse = broadcast(rstd.as<float>()[n]);
                    const auto g = [=](int64_t c, auto part) {
                        return load(gradient + c, part) * load(weight + c, part);
                    };
                    const auto xhat = [=](int64_t c, auto part) { return load(in + c, part) * inverse; };
                    const float sum = row_sum(width, [=](int64_t c, auto part) { return g(c, part) * xhat(c, part); });
                    const Vec mean_gx = broadcast(sum / static_cast<float>(width));
                    for_vectors(0, width, [=](int64_t c, auto part) {
                        store(inverse * fma_negative(xhat(c, part), mean_gx, g(c, part)), out + c, part);
                    });
                }
            });
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
