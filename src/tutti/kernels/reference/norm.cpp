// kernels/reference/norm.cpp: layer norm (Ba et al. 2016) and RMS norm (Zhang and Sennrich 2019), which has neither
// mean nor bias; forward and backward. The backward reads the mean and rstd that the forward stored; x^ is the
// normalised input.
#include <cmath>

#include "tutti/kernels/reference/element.h"
#include "tutti/kernels/reference/fill.h"

namespace tutti::kernels::reference {

namespace {

// The input of the norm: x, or x + residual, rounded to its type and stored in `sum`.
View summed(const Stream& stream, const View& x, const View& residual, const View& sum) {
    if (!residual.defined()) return x;
    reference_table().add(stream, x, residual, sum);
    return sum;
}

double load_or_zero(const View& x, int64_t i) { return x.defined() ? load(x, i) : 0; }

// The first weight of row n.
int64_t weights_of(const View& w, int64_t n, int64_t C) { return C == 0 ? 0 : n % (w.numel() / C) * C; }

// x^ = (x - mean) rstd, rstd = (mean_c (x - mean)^2 + eps)^(-1/2);  y = x^ (w + offset) [+ b]
void norm_forward(const Stream& stream, const NormForward& f) {
    const auto& [before, w, b, eps, y, mean, rstd, residual, sum, offset] = f;
    const View x = summed(stream, before, residual, sum);
    const int64_t N = x.rows(), C = x.columns();
    for (int64_t n = 0; n < N; ++n) {
        double m = 0, variance = 0;
        if (mean.defined()) {
            for (int64_t c = 0; c < C; ++c) m += load(x, n * C + c);
            m /= static_cast<double>(C);
            store(mean, n, m);
        }
        for (int64_t c = 0; c < C; ++c) variance += (load(x, n * C + c) - m) * (load(x, n * C + c) - m);
        variance /= static_cast<double>(C);
        const double r = 1 / std::sqrt(variance + eps);
        for (int64_t c = 0; c < C; ++c) {
            const double scaled = (load(x, n * C + c) - m) * r * (load(w, weights_of(w, n, C) + c) + offset);
            store(y, n * C + c, b.defined() ? scaled + load(b, c) : scaled);
        }
        store(rstd, n, r);
    }
}

// dw += sum_n dy x^,  db += sum_n dy
void norm_backward_weight(const Stream& stream, View dy, View x, View mean, View rstd, View dw, View db) {
    const int64_t N = x.rows(), C = x.columns();
    for (int64_t i = 0; i < dw.numel(); ++i) {
        double weight = load(dw, i);
        for (int64_t n = i / C; n < N; n += dw.numel() / C)
            weight += load(dy, n * C + i % C) * (load(x, n * C + i % C) - load_or_zero(mean, n)) * load(rstd, n);
        store(dw, i, weight);
    }
    if (db.defined()) reference_table().bias_backward(stream, dy, db);
}

// With g = dy (w + offset):  dx = [add +] rstd (g - mean_c g - x^ mean_c (g x^)), without mean_c g for RMS norm
void norm_backward_input(const Stream& stream, const NormBackward& b) {
    const auto& [dy, x, w, mean, rstd, dx, add, offset, dw, db] = b;
    const int64_t N = x.rows(), C = x.columns();
    for (int64_t n = 0; n < N; ++n) {
        const double m = load_or_zero(mean, n), r = load(rstd, n);
        double mean_g = 0, mean_gx = 0;
        for (int64_t c = 0; c < C; ++c) {
            const double g = load(dy, n * C + c) * (load(w, weights_of(w, n, C) + c) + offset);
            if (mean.defined()) mean_g += g / static_cast<double>(C);
            mean_gx += g * (load(x, n * C + c) - m) * r / static_cast<double>(C);
        }
        for (int64_t c = 0; c < C; ++c) {
            const double g = load(dy, n * C + c) * (load(w, weights_of(w, n, C) + c) + offset);
            const double xhat = (load(x, n * C + c) - m) * r;
            store(dx, n * C + c, load_or_zero(add, n * C + c) + r * (g - mean_g - xhat * mean_gx));
        }
    }
    if (dw.defined()) norm_backward_weight(stream, dy, x, mean, rstd, dw, db);
}

}  // namespace

void fill_norm(KernelTable& table) {
    table.norm_forward = norm_forward;
    table.norm_backward_input = norm_backward_input;
    table.norm_backward_weight = norm_backward_weight;
}

}  // namespace tutti::kernels::reference
