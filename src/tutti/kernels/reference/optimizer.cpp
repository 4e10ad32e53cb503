// kernels/reference/optimizer.cpp: one optimizer update of a flat parameter. See kernels.h.
#include <cmath>

#include "tutti/kernels/reference/element.h"
#include "tutti/kernels/reference/kernels.h"

namespace tutti::kernels::reference {

// m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  p -= lr (m / c1 / (sqrt(v / c2) + eps) + decay p)
void adamw(const Stream&, const AdamW& a) {
    const double b1 = a.beta1, b2 = a.beta2;
    for (int64_t i = 0; i < a.master.numel(); ++i) {
        const double p = load(a.master, i), g = a.grad_scale * load(a.gradient, i);
        const double m = b1 * load(a.m, i) + (1 - b1) * g;
        const double v = b2 * load(a.v, i) + (1 - b2) * g * g;
        const double direction = m / a.correction1 / (std::sqrt(v / a.correction2) + a.eps);
        store(a.m, i, m);
        store(a.v, i, v);
        store(a.master, i, p - a.lr * (direction + a.weight_decay * p));
        if (a.value.defined()) store(a.value, i, load(a.master, i));
    }
}

// u = momentum u + (g + decay p);  p -= lr u
void sgd(const Stream&, const Sgd& s) {
    for (int64_t i = 0; i < s.master.numel(); ++i) {
        const double p = load(s.master, i), g = s.grad_scale * load(s.gradient, i);
        const double u = s.momentum * load(s.momentum_buffer, i) + (g + s.weight_decay * p);
        store(s.momentum_buffer, i, u);
        store(s.master, i, p - s.lr * u);
        if (s.value.defined()) store(s.value, i, load(s.master, i));
    }
}

}  // namespace tutti::kernels::reference
