// kernels/reference/loss.cpp: cross entropy over a vocabulary, squared error. See kernels.h.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tutti/kernels/reference/element.h"
#include "tutti/kernels/reference/kernels.h"

namespace tutti::kernels::reference {

// loss_n = lse_n - logits[n, target_n], lse_n = ln sum_{v < vocab} exp(logits[n, v]);
// dlogits = grad_scale (exp(logits - lse_n) - [v = target_n]). A negative target: loss 0, gradient 0.
void cross_entropy(const Stream&, const CrossEntropy& c) {
    const int64_t N = c.logits.shape[0], V = c.logits.shape[1];
    for (int64_t n = 0; n < N; ++n) {
        const int64_t target = load_index(c.targets, n);
        const bool counts = target >= 0;
        double largest = -std::numeric_limits<double>::infinity(), total = 0;
        for (int64_t v = 0; v < c.vocab; ++v) largest = std::max(largest, load(c.logits, offset(c.logits, n, v)));
        for (int64_t v = 0; v < c.vocab; ++v) total += std::exp(load(c.logits, offset(c.logits, n, v)) - largest);
        const double lse = largest + std::log(total);
        store(c.losses, n, counts ? lse - load(c.logits, offset(c.logits, n, target)) : 0);
        if (!c.gradient) continue;
        for (int64_t v = 0; v < V; ++v) {
            double gradient = 0;
            if (counts && v < c.vocab)
                gradient = std::exp(load(c.logits, offset(c.logits, n, v)) - lse) - (v == target ? 1 : 0);
            store(c.logits, offset(c.logits, n, v), c.grad_scale * gradient);
        }
    }
}

// loss_n = sum_c (x - target)^2;  dx = grad_scale 2 (x - target)
void squared_error(const Stream&, View x, View target, float grad_scale, View losses, View dx) {
    const int64_t N = x.rows(), C = x.columns();
    for (int64_t n = 0; n < N; ++n) {
        double loss = 0;
        for (int64_t c = 0; c < C; ++c) {
            const double difference = load(x, n * C + c) - load(target, n * C + c);
            loss += difference * difference;
            if (dx.defined()) store(dx, n * C + c, grad_scale * 2 * difference);
        }
        store(losses, n, loss);
    }
}

}  // namespace tutti::kernels::reference
