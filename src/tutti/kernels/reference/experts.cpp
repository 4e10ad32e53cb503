// kernels/reference/experts.cpp: mixtures of experts: routing and its gradient, load balancing, permutation of rows to
// experts and back, and grouped products.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "tutti/kernels/groups.h"
#include "tutti/kernels/reference/element.h"
#include "tutti/kernels/reference/fill.h"

namespace tutti::kernels::reference {

namespace {

using Row = std::vector<double>;

// A NaN counts as larger than any number, so that the NaN is chosen and appears in the weights.
bool is_larger(double a, double b) { return std::isnan(a) ? !std::isnan(b) : a > b; }

// Indices of `values` in descending order of value; equal values keep their order.
std::vector<size_t> falling(const Row& values) {
    std::vector<size_t> order(values.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return is_larger(values[a], values[b]); });
    return order;
}

double sum_of(const Row& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

Row row_of(const View& x, int64_t n) {
    const int64_t columns = x.columns();
    Row row;
    for (int64_t c = 0; c < columns; ++c) row.push_back(load(x, n * columns + c));
    return row;
}

// ln sum_e exp(x_e)
double log_sum_exp(const Row& x) {
    const double largest = *std::max_element(x.begin(), x.end());
    double sum = 0;
    for (const double v : x) sum += std::exp(v - largest);
    return largest + std::log(sum);
}

Row softmax(const Row& x) {
    const double log_sum = log_sum_exp(x);
    Row p;
    for (const double v : x) p.push_back(std::exp(v - log_sum));
    return p;
}

Row probabilities(const Routing& r, const Row& x) {
    if (!r.sigmoid) return softmax(x);
    Row p;
    for (const double v : x) p.push_back(1 / (1 + std::exp(-v)));
    return p;
}

// Experts in descending order of score, without the experts of groups that were not chosen.
std::vector<size_t> candidates(const Routing& r, const Row& score) {
    const size_t groups = static_cast<size_t>(r.groups), chosen = static_cast<size_t>(r.chosen_groups);
    const size_t size = score.size() / groups;
    Row best;  // of each group, the sum of its group_best largest scores
    for (size_t g = 0; g < groups; ++g) {
        const Row own(score.begin() + static_cast<int64_t>(g * size),
                      score.begin() + static_cast<int64_t>(g * size + size));
        const std::vector<size_t> order = falling(own);
        best.push_back(0);
        for (size_t i = 0; i < static_cast<size_t>(r.group_best); ++i) best.back() += own[order[i]];
    }
    std::vector<size_t> of_groups = falling(best), experts;
    of_groups.resize(chosen);
    for (const size_t e : falling(score))
        if (std::find(of_groups.begin(), of_groups.end(), e / size) != of_groups.end()) experts.push_back(e);
    return experts;
}

// The factor of p in the weights of the chosen: scale / (epsilon + sum p), or scale.
double factor_of(const Routing& r, const Row& chosen) {
    return r.normalise ? r.scale / (static_cast<double>(r.epsilon) + sum_of(chosen)) : static_cast<double>(r.scale);
}

void route_row(const Routing& r, int64_t n) {
    const Row x = row_of(r.logits, n), p = probabilities(r, x);
    const int64_t E = static_cast<int64_t>(p.size()), k = r.experts.columns();
    Row score = p, chosen;
    if (r.bias.defined())
        for (int64_t e = 0; e < E; ++e) score[static_cast<size_t>(e)] += load(r.bias, e);
    const std::vector<size_t> experts = candidates(r, score);
    for (int64_t j = 0; j < k; ++j) chosen.push_back(p[experts[static_cast<size_t>(j)]]);
    const double factor = factor_of(r, chosen), total = r.sigmoid ? sum_of(p) : 1;
    for (int64_t j = 0; j < k; ++j) {
        r.experts.as<int32_t>()[n * k + j] = static_cast<int32_t>(experts[static_cast<size_t>(j)]);
        store(r.weights, n * k + j, factor * chosen[static_cast<size_t>(j)]);
    }
    double entropy = 0;
    for (int64_t e = 0; e < E; ++e) {
        const double share = p[static_cast<size_t>(e)] / total;
        if (r.shares.defined()) store(r.shares, n * E + e, share);
        if (share != 0) entropy -= share * std::log(share);
    }
    store(r.entropy, n, entropy);
    store(r.log_sum, n, log_sum_exp(x));
}

// With q_j = factor p_j the weights and g their gradients, s_e = p_e / P the shares and D theirs:
// dp_e = [e is chosen] (scale g_e - sum_j g_j q_j) / (epsilon + sum_j p_j) + (D_e - sum_f D_f s_f) / P, or scale g_e
// for the first part where weights are not normalised. Then through softmax or sigmoid:
// dx_e = p_e (dp_e - sum_f p_f dp_f), or dp_e p_e (1 - p_e); and of z_scale L^2, L = ln sum exp(x): 2 z_scale L
// softmax_e.
void route_row_backward(const RoutingBackward& b, int64_t n) {
    const Routing& r = b.forward;
    const Row x = row_of(r.logits, n), p = probabilities(r, x), soft = softmax(x), g = row_of(b.dweights, n);
    const size_t E = p.size(), k = g.size();
    std::vector<size_t> experts;
    Row chosen, dp(E);
    for (size_t j = 0; j < k; ++j) {
        experts.push_back(
            static_cast<size_t>(load_index(r.experts, n * static_cast<int64_t>(k) + static_cast<int64_t>(j))));
        chosen.push_back(p[experts[j]]);
    }
    const double factor = factor_of(r, chosen);
    double g_chosen = 0;  // sum_j g_j p_j
    for (size_t j = 0; j < k; ++j) g_chosen += g[j] * chosen[j];
    for (size_t j = 0; j < k; ++j) {
        dp[experts[j]] += factor * g[j];
        if (r.normalise) dp[experts[j]] -= factor * g_chosen / (static_cast<double>(r.epsilon) + sum_of(chosen));
    }
    if (b.dshares.defined()) {
        const Row D = row_of(b.dshares, b.segments.defined() ? load_index(b.segments, n) : 0);
        const double total = sum_of(p);
        double mean = 0;
        for (size_t e = 0; e < E; ++e) mean += D[e] * p[e] / total;
        for (size_t e = 0; e < E; ++e) dp[e] += (D[e] - mean) / total;
    }
    double p_dp = 0;
    for (size_t e = 0; e < E; ++e) p_dp += p[e] * dp[e];
    const double of_log_sum = 2 * static_cast<double>(b.z_scale) * log_sum_exp(x);
    for (size_t e = 0; e < E; ++e) {
        const double dx = r.sigmoid ? dp[e] * p[e] * (1 - p[e]) : p[e] * (dp[e] - p_dp);
        store(b.dlogits, n * static_cast<int64_t>(E) + static_cast<int64_t>(e), dx + of_log_sum * soft[e]);
    }
}

void route(const Stream&, const Routing& r) {
    for (int64_t n = 0; n < r.logits.shape[0]; ++n) route_row(r, n);
}

void route_backward(const Stream&, const RoutingBackward& b) {
    for (int64_t n = 0; n < b.dlogits.shape[0]; ++n) route_row_backward(b, n);
}

// bias_e += rate sign(mean - counts_e)
void balance(const Stream&, View bias, View counts, float mean, float rate) {
    for (int64_t e = 0; e < bias.numel(); ++e) {
        const double missing = mean - load(counts, e);
        store(bias, e, load(bias, e) + (missing > 0 ? rate : missing < 0 ? -rate : 0));
    }
}

// y[m] = x[rows[m]], or zeros
void gather_rows(const Stream&, View x, View rows, View y) {
    const int64_t C = y.columns();
    for (int64_t m = 0; m < rows.numel(); ++m) {
        const int64_t from = load_index(rows, m);
        for (int64_t c = 0; c < C; ++c) store(y, m * C + c, from < 0 ? 0 : load(x, from * C + c));
    }
}

// y[n] = sum_j weights[n, j] x[rows[n, j]]
void combine_rows(const Stream&, View x, View rows, View weights, View y) {
    const int64_t N = rows.shape[0], k = rows.shape[1], C = y.columns();
    for (int64_t n = 0; n < N; ++n)
        for (int64_t c = 0; c < C; ++c) {
            double sum = 0;
            for (int64_t i = n * k; i < (n + 1) * k; ++i)
                if (const int64_t from = load_index(rows, i); from >= 0)
                    sum += (weights.defined() ? load(weights, i) : 1) * load(x, from * C + c);
            store(y, n * C + c, sum);
        }
}

// dx[rows[n, j]] = weights[n, j] dy[n];  dweights[n, j] = dy[n] . x[rows[n, j]]
void combine_rows_backward(const Stream&, View dy, View x, View rows, View weights, View dx, View dweights) {
    const int64_t N = rows.shape[0], k = rows.shape[1], C = dx.columns();
    for (int64_t i = 0; i < dx.numel(); ++i) store(dx, i, 0);
    for (int64_t i = 0; i < N * k; ++i) {
        const int64_t n = i / k, row = load_index(rows, i);
        double product = 0;
        for (int64_t c = 0; row >= 0 && c < C; ++c) {
            const double d = load(dy, n * C + c);
            store(dx, row * C + c, (weights.defined() ? load(weights, i) : 1) * d);
            if (dweights.defined()) product += d * load(x, row * C + c);
        }
        if (dweights.defined()) store(dweights, i, product);
    }
}

// The places follow from the definition: owners, then copies, then experts, then choices in their order.
void sort_choices(const Stream&, const SortChoices& s) {
    const int64_t N = s.choices.shape[0], k = s.choices.shape[1], E = s.counts.numel(), local = E / s.owners;
    for (int64_t e = 0; e < E; ++e) store(s.counts, e, 0);
    for (int64_t i = 0; i < N * k; ++i)
        if (const int64_t e = load_index(s.choices, i); e >= 0 && e < E) store(s.counts, e, load(s.counts, e) + 1);
    for (int64_t i = 0; i < N * k * s.copies; ++i) {
        if (s.sent.defined()) s.sent.as<int32_t>()[i] = -1;
        if (s.slots.defined()) s.slots.as<int32_t>()[i] = -1;
    }
    int32_t at = 0;
    for (int64_t owner = 0; owner < s.owners; ++owner)
        for (int64_t copy = 0; copy < s.copies; ++copy)
            for (int64_t e = owner * local; e < (owner + 1) * local; ++e)
                for (int64_t i = 0; i < N * k; ++i) {
                    if (load_index(s.choices, i) != e) continue;
                    if (s.slots.defined()) s.slots.as<int32_t>()[i / k * s.copies * k + copy * k + i % k] = at;
                    if (s.sent.defined()) s.sent.as<int32_t>()[at] = static_cast<int32_t>(i / k);
                    ++at;
                }
}

// A choice is accepted when fewer than `capacity` choices of its expert come before it.
void accept_choices(const Stream&, const AcceptChoices& a) {
    const int64_t k = a.choices.shape[1];
    const auto comes_before = [&](int64_t i, int64_t j) {
        if (a.weights.defined()) {
            const double x = load(a.weights, i), y = load(a.weights, j);
            if (is_larger(x, y) || is_larger(y, x)) return is_larger(x, y);
        }
        const int64_t row = load_index(a.rows, i / k), other = load_index(a.rows, j / k);
        return row != other ? row < other : i % k < j % k;
    };
    for (int64_t n = 0; n < a.accepted.numel(); ++n) {
        const int64_t i = a.first * k + n, e = load_index(a.choices, i);
        int64_t before = 0;
        for (int64_t j = 0; e >= 0 && j < a.choices.numel(); ++j)
            before += load_index(a.choices, j) == e && comes_before(j, i);
        a.accepted.as<int32_t>()[n] = before < a.capacity ? static_cast<int32_t>(e) : -1;
    }
}

void order_arrivals(const Stream&, View counts, int64_t multiple, View order, View places) {
    const int64_t P = counts.shape[0], L = counts.shape[1];
    int32_t at = 0;
    for (int64_t e = 0; e < L; ++e) {
        int32_t arrival = 0;
        for (int64_t segment = 0; segment < P * L; ++segment)
            for (int64_t i = 0; i < static_cast<int64_t>(load(counts, segment)); ++i, ++arrival)
                if (segment % L == e) {
                    order.as<int32_t>()[at] = arrival;
                    places.as<int32_t>()[arrival] = at++;
                }
        while (at % multiple != 0) order.as<int32_t>()[at++] = -1;
    }
}

void grouped_gemm(const Stream& stream, const GroupedGemm& grouped) {
    for_groups(grouped, [&](const Gemm& g) { reference_table().gemm(stream, g); });
}

}  // namespace

void fill_experts(KernelTable& table) {
    table.route = route;
    table.route_backward = route_backward;
    table.balance = balance;
    table.gather_rows = gather_rows;
    table.combine_rows = combine_rows;
    table.combine_rows_backward = combine_rows_backward;
    table.sort_choices = sort_choices;
    table.accept_choices = accept_choices;
    table.order_arrivals = order_arrivals;
    table.grouped_gemm = grouped_gemm;
    table.grouped_gemm_workspace = [](const Stream&, const GroupedGemm&) -> int64_t { return 0; };
}

}  // namespace tutti::kernels::reference
