// kernels/reference/loss.cpp: cross entropy over a vocabulary, whole or in shards; squared error; a token drawn from a
// row of logits, by sorting.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "tutti/kernels/reference/element.h"
#include "tutti/kernels/reference/fill.h"

namespace tutti::kernels::reference {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Statistics of one row over the words of one shard, or over all words.
struct Partial {
    double maximum = -kInfinity;
    double sum = 0;     // of exp(x - maximum)
    double target = 0;  // the target's logit
};

Partial partial_of_row(const CrossEntropy& c, int64_t n) {
    const int64_t words = std::min(c.logits.shape[1], c.vocab - c.first_word), word = load_index(c.targets, n);
    Partial p;
    if (word < 0 || word >= c.vocab) return p;
    const auto x = [&](int64_t v) { return load(c.logits, offset(c.logits, n, v)); };
    for (int64_t v = 0; v < words; ++v) p.maximum = std::max(p.maximum, x(v));
    for (int64_t v = 0; v < words; ++v)
        if (x(v) != -kInfinity) p.sum += std::exp(x(v) - p.maximum);  // a shard's words may all be at -infinity
    if (word >= c.first_word && word < c.first_word + words) p.target = x(word - c.first_word);
    return p;
}

Partial sum_of_partials(const View& partials, int64_t n) {
    Partial all;
    for (int64_t p = 0; p < partials.shape[0]; ++p)
        all.maximum = std::max(all.maximum, load(partials, offset(partials, p, 0, n)));
    for (int64_t p = 0; p < partials.shape[0]; ++p) {
        const double maximum = load(partials, offset(partials, p, 0, n));
        all.sum += load(partials, offset(partials, p, 1, n)) * std::exp(maximum - all.maximum);
        all.target += load(partials, offset(partials, p, 2, n));
    }
    return all;
}

// loss_n = lse_n - logits[n, target_n], lse_n = ln sum_{v < vocab} exp(logits[n, v]);
// dlogits = grad_scale (exp(logits - lse_n) - [v = target_n]), through a cap c times 1 - (logits / c)^2. A negative
// target: loss 0, gradient 0.
void finish_row(const CrossEntropy& c, int64_t n, const Partial& all) {
    const int64_t target = load_index(c.targets, n);
    const bool counts = target >= 0 && target < c.vocab;
    const double lse = all.maximum + std::log(all.sum);
    store(c.losses, n, counts ? lse - all.target : target < 0 ? 0 : std::numeric_limits<double>::quiet_NaN());
    if (!c.gradient) return;
    for (int64_t i = 0; i < c.logits.shape[1]; ++i) {
        const int64_t v = c.first_word + i;
        double gradient = 0;
        if (counts && v < c.vocab) {
            const double x = load(c.logits, offset(c.logits, n, i)), share = c.cap > 0 ? x / c.cap : 0;
            gradient = (std::exp(x - lse) - (v == target ? 1 : 0)) * (1 - share * share);
        }
        store(c.logits, offset(c.logits, n, i), c.grad_scale * gradient);
    }
}

void cross_entropy(const Stream&, const CrossEntropy& c) {
    for (int64_t n = 0; n < c.logits.shape[0]; ++n) finish_row(c, n, partial_of_row(c, n));
}

void cross_entropy_partial(const Stream&, const CrossEntropy& c) {
    for (int64_t n = 0; n < c.logits.shape[0]; ++n) {
        const Partial p = partial_of_row(c, n);
        store(c.partials, offset(c.partials, 0, n), p.maximum);
        store(c.partials, offset(c.partials, 1, n), p.sum);
        store(c.partials, offset(c.partials, 2, n), p.target);
    }
}

void cross_entropy_finish(const Stream&, const CrossEntropy& c) {
    for (int64_t n = 0; n < c.logits.shape[0]; ++n) finish_row(c, n, sum_of_partials(c.partials, n));
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

// The number of kept tokens of `order` (from the most likely down) for a top `count`: equally likely tokens stay
// together.
size_t with_equals(const std::vector<double>& x, const std::vector<size_t>& order, size_t count) {
    while (count < order.size() && x[order[count]] == x[order[count - 1]]) ++count;
    return count;
}

int32_t draw_token(const Sample& s, const std::vector<double>& x, uint64_t draw) {
    if (std::any_of(x.begin(), x.end(), [](double v) { return std::isnan(v); })) return -1;
    const double largest = *std::max_element(x.begin(), x.end());
    if (!std::isfinite(largest)) return -1;
    if (s.temperature <= 0) return static_cast<int32_t>(std::find(x.begin(), x.end(), largest) - x.begin());

    std::vector<double> weights;
    for (const double v : x) weights.push_back(std::exp((v - largest) / s.temperature));
    std::vector<size_t> order(x.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return x[a] > x[b]; });
    const auto total = [&] {
        return std::accumulate(order.begin(), order.end(), 0.0, [&](double sum, size_t i) { return sum + weights[i]; });
    };
    if (s.top_k > 0 && static_cast<size_t>(s.top_k) < order.size())
        order.resize(with_equals(x, order, static_cast<size_t>(s.top_k)));
    if (s.top_p < 1) {
        const double need = s.top_p * total();
        double reached = 0;
        size_t count = 0;
        while (count < order.size() && (count == 0 || reached < need)) reached += weights[order[count++]];
        order.resize(with_equals(x, order, count));
    }
    std::sort(order.begin(), order.end());
    const auto words = philox(s.key, draw);  // uniform_below's 64 bits, as a share
    double left = (words[0] * 0x1p-32 + words[1] * 0x1p-64) * total();
    for (const size_t i : order) {
        left -= weights[i];
        if (left < 0) return static_cast<int32_t>(i);
    }
    return static_cast<int32_t>(order.back());
}

// token_n ~ exp(logits[n, v] / temperature) over the v < vocab that top_k and then top_p keep
void sample(const Stream&, const Sample& s) {
    for (int64_t n = 0; n < s.logits.shape[0]; ++n) {
        std::vector<double> x;
        for (int64_t v = 0; v < s.vocab; ++v) x.push_back(load(s.logits, offset(s.logits, n, v)));
        s.tokens.as<int32_t>()[n] = draw_token(s, x, static_cast<uint64_t>(load_index(s.draws, n)));
    }
}

}  // namespace

void fill_loss(KernelTable& table) {
    table.cross_entropy = cross_entropy;
    table.cross_entropy_partial = cross_entropy_partial;
    table.cross_entropy_finish = cross_entropy_finish;
    table.squared_error = squared_error;
    table.sample = sample;
}

}  // namespace tutti::kernels::reference
