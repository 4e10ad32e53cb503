// kernels/reference/sampling.cpp: a token drawn from a row of logits, by sorting. See kernels.h.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "tutti/kernels/reference/element.h"
#include "tutti/kernels/reference/kernels.h"

namespace tutti::kernels::reference {

namespace {

// How many of `order`, the tokens from the most likely down, are kept when `count` are asked for: equals stay together.
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

}  // namespace

// token_n ~ exp(logits[n, v] / temperature) over the v < vocab that top_k and then top_p keep
void sample(const Stream&, const Sample& s) {
    for (int64_t n = 0; n < s.logits.shape[0]; ++n) {
        std::vector<double> x;
        for (int64_t v = 0; v < s.vocab; ++v) x.push_back(load(s.logits, offset(s.logits, n, v)));
        s.tokens.as<int32_t>()[n] = draw_token(s, x, static_cast<uint64_t>(load_index(s.draws, n)));
    }
}

}  // namespace tutti::kernels::reference
