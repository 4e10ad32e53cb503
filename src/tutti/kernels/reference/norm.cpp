// kernels/reference/norm.cpp: layer norm (Ba et al. 2016) and RMS norm (Zhang and Sennrich 2019), forward and backward.
// Backward takes the mean and rstd that forward stored; x^ below is the normalised input. See kernels.h.
#include <cmath>

#include "tutti/kernels/reference/element.h"
#include "tutti/kernels/reference/kernels.h"

namespace tutti::kernels::reference {

namespace {

// What is normalised: x, or x + residual as it is rounded when it is stored.
View summed(const Stream& stream, const View& x, const View& residual, const View& sum) {
    if (!residual.defined()) return x;
    add(stream, x, residual, sum);
    return sum;
}

double load_or_zero(const View& x, int64_t i) { return x.defined() ? load(x, i) : 0; }

}  // namespace

// x^ = (x - mean) rstd, rstd = (mean_c (x - mean)^2 + eps)^(-1/2);  y = x^ w + b
void layer_norm_forward(const Stream& stream, const LayerNormForward& f) {
    const auto& [before, w, b, eps, y, mean, rstd, residual, sum] = f;
    const View x = summed(stream, before, residual, sum);
    const int64_t N = x.rows(), C = x.columns();
    for (int64_t n = 0; n < N; ++n) {
        double m = 0, variance = 0;
        for (int64_t c = 0; c < C; ++c) m += load(x, n * C + c);
        m /= static_cast<double>(C);
        for (int64_t c = 0; c < C; ++c) variance += (load(x, n * C + c) - m) * (load(x, n * C + c) - m);
        variance /= static_cast<double>(C);
        const double r = 1 / std::sqrt(variance + eps);
        for (int64_t c = 0; c < C; ++c) store(y, n * C + c, (load(x, n * C + c) - m) * r * load(w, c) + load(b, c));
        store(mean, n, m);
        store(rstd, n, r);
    }
}

// With g = dy w:  dx = [add +] rstd (g - mean_c g - x^ mean_c (g x^))
void layer_norm_backward_input(const Stream&, const LayerNormBackward& b) {
    const auto& [dy, x, w, mean, rstd, dx, add] = b;
    const int64_t N = x.rows(), C = x.columns();
    for (int64_t n = 0; n < N; ++n) {
        const double m = load(mean, n), r = load(rstd, n);
        double mean_g = 0, mean_gx = 0;
        for (int64_t c = 0; c < C; ++c) {
            const double g = load(dy, n * C + c) * load(w, c);
            mean_g += g / static_cast<double>(C);
            mean_gx += g * (load(x, n * C + c) - m) * r / static_cast<double>(C);
        }
        for (int64_t c = 0; c < C; ++c) {
            const double g = load(dy, n * C + c) * load(w, c), xhat = (load(x, n * C + c) - m) * r;
            store(dx, n * C + c, load_or_zero(add, n * C + c) + r * (g - mean_g - xhat * mean_gx));
        }
    }
}

// dw += sum_n dy x^,  db += sum_n dy
void layer_norm_backward_weight(const Stream&, View dy, View x, View mean, View rstd, View dw, View db) {
    const int64_t N = x.rows(), C = x.columns();
    for (int64_t c = 0; c < C; ++c) {
        double weight = load(dw, c), bias = load(db, c);
        for (int64_t n = 0; n < N; ++n) {
            weight += load(dy, n * C + c) * (load(x, n * C + c) - load(mean, n)) * load(rstd, n);
            bias += load(dy, n * C + c);
        }
        store(dw, c, weight);
        store(db, c, bias);
    }
}

// x^ = x rstd, rstd = (mean_c x^2 + eps)^(-1/2);  y = x^ w
void rms_norm_forward(const Stream& stream, const RmsNormForward& f) {
    const auto& [before, w, eps, y, rstd, residual, sum] = f;
    const View x = summed(stream, before, residual, sum);
    const int64_t N = x.rows(), C = x.columns();
    for (int64_t n = 0; n < N; ++n) {
        double mean_square = 0;
        for (int64_t c = 0; c < C; ++c) mean_square += load(x, n * C + c) * load(x, n * C + c);
        mean_square /= static_cast<double>(C);
        const double r = 1 / std::sqrt(mean_square + eps);
        for (int64_t c = 0; c < C; ++c) store(y, n * C + c, load(x, n * C + c) * r * load(w, c));
        store(rstd, n, r);
    }
}

// With g = dy w:  dx = [add +] rstd (g - x^ mean_c (g x^))
void rms_norm_backward_input(const Stream&, const RmsNormBackward& b) {
    const auto& [dy, x, w, rstd, dx, add] = b;
    const int64_t N = x.rows(), C = x.columns();
    for (int64_t n = 0; n < N; ++n) {
        const double r = load(rstd, n);
        double mean_gx = 0;
        for (int64_t c = 0; c < C; ++c)
            mean_gx += load(dy, n * C + c) * load(w, c) * load(x, n * C + c) * r / static_cast<double>(C);
        for (int64_t c = 0; c < C; ++c) {
            const double g = load(dy, n * C + c) * load(w, c), xhat = load(x, n * C + c) * r;
            store(dx, n * C + c, load_or_zero(add, n * C + c) + r * (g - xhat * mean_gx));
        }
    }
}

// dw += sum_n dy x^
void rms_norm_backward_weight(const Stream&, View dy, View x, View rstd, View dw) {
    const int64_t N = x.rows(), C = x.columns();
    for (int64_t c = 0; c < C; ++c) {
        double weight = load(dw, c);
        for (int64_t n = 0; n < N; ++n) weight += load(dy, n * C + c) * load(x, n * C + c) * load(rstd, n);
        store(dw, c, weight);
    }
}

}  // namespace tutti::kernels::reference
