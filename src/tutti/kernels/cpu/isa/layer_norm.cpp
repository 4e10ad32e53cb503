// kernels/cpu/isa/layer_norm.cpp: layer norm (Ba et al. 2016). A row is a few KB: read from memory once, then from L1,
// so the variance takes a pass of its own around the mean and loses nothing to cancellation.
#include "tutti/kernels/cpu/fill.h"
#include "tutti/kernels/cpu/isa/column_sums.h"
#include "tutti/kernels/cpu/isa/loops.h"

namespace tutti::kernels::TUTTI_ISA {
namespace {

// x^ = (x - mean) rstd, rstd = (mean_c (x - mean)^2 + eps)^(-1/2);  y = x^ w + b
void layer_norm_forward(const Stream& stream, View x, View w, View b, float eps, View y, View mean, View rstd) {
    const int64_t width = columns(x);
    with_type(x.dtype, [&](auto x_type) {
        with_type(w.dtype, [&](auto w_type) {
            using T = typename decltype(x_type)::type;
            const auto* weight = w.as<typename decltype(w_type)::type>();
            const auto* bias = b.as<typename decltype(w_type)::type>();
            parallel_for(stream, rows(x), row_grain(width), [&](int64_t begin, int64_t end) {
                for (int64_t n = begin; n < end; ++n) {
                    const T* in = x.as<T>() + n * width;
                    T* out = y.as<T>() + n * width;
                    const float m = row_sum(width, [=](int64_t c, auto part) { return load(in + c, part); }) /
                                    static_cast<float>(width);
                    const Vec center = broadcast(m);
                    const float squares = row_sum(width, [=](int64_t c, auto part) {
                        const Vec difference = load(in + c, part) - center;
                        return difference * difference;
                    });
                    const float r = 1.0f / __builtin_sqrtf(squares / static_cast<float>(width) + eps);
                    const Vec inverse = broadcast(r);
                    for_vectors(0, width, [=](int64_t c, auto part) {
                        const Vec xhat = (load(in + c, part) - center) * inverse;
                        store(fma(xhat, load(weight + c, part), load(bias + c, part)), out + c, part);
                    });
                    mean.as<float>()[n] = m;
                    rstd.as<float>()[n] = r;
                }
            });
        });
    });
}

// With g = dy w:  dx = rstd (g - mean_c g - x^ mean_c (g x^))
void layer_norm_backward_input(const Stream& stream, View dy, View x, View w, View mean, View rstd, View dx) {
    const int64_t width = columns(x);
    with_type(x.dtype, [&](auto x_type) {
        with_type(w.dtype, [&](auto w_type) {
            using T = typename decltype(x_type)::type;
            const auto* weight = w.as<typename decltype(w_type)::type>();
            parallel_for(stream, rows(x), row_grain(width), [&](int64_t begin, int64_t end) {
                for (int64_t n = begin; n < end; ++n) {
                    const T *gradient = dy.as<T>() + n * width, *in = x.as<T>() + n * width;
                    T* out = dx.as<T>() + n * width;
                    const Vec center = broadcast(mean.as<float>()[n]), inverse = broadcast(rstd.as<float>()[n]);
                    const auto g = [=](int64_t c, auto part) {
                        return load(gradient + c, part) * load(weight + c, part);
                    };
                    const auto xhat = [=](int64_t c, auto part) { return (load(in + c, part) - center) * inverse; };
                    const float count = static_cast<float>(width);
                    const Vec mean_g = broadcast(row_sum(width, g) / count);
                    const Vec mean_gx = broadcast(
                        row_sum(width, [=](int64_t c, auto part) { return g(c, part) * xhat(c, part); }) / count);
                    for_vectors(0, width, [=](int64_t c, auto part) {
                        const Vec centered = g(c, part) - mean_g;
                        store(inverse * fma_negative(xhat(c, part), mean_gx, centered), out + c, part);
                    });
                }
            });
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
