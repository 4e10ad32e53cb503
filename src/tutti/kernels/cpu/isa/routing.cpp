// kernels/cpu/isa/routing.cpp: routing of rows to experts, its gradient, and load balancing. The logits of a row are
// read once; all intermediate values stay in arrays of kMostExperts floats.
#include "tutti/kernels/cpu/isa/loops.h"
#include "tutti/kernels/cpu/isa/parts.h"

namespace tutti::kernels::TUTTI_ISA {

namespace {

constexpr float kInfinity = __builtin_inff(), kLargest = 3.40282347e38f, kLeastNormal = 1.17549435e-38f;
constexpr float kLeastExponent = -87.33654f;  // of which exp_bounded is not 0

// Whole vectors, of which those beyond n are `rest`.
struct alignas(64) RowArray {
    float at[kMostExperts];

    template <class Value>
    void set(int64_t n, float rest, Value&& value) {
        for_vectors(0, n, [&](int64_t e, auto part) { store(value(e, part), at + e, Full{}); });
        for (int64_t e = n; e % kLanes != 0; ++e) at[e] = rest;
    }
};

// -ln sigmoid(x) = ln(1 + e^-x) and sigmoid(x), by one exponential: with t = e^-|x|, ln(1 + t) = 2 artanh(t / (2 + t)),
// whose argument is at most 1/3: eight terms of its series are good to 2^-29.
struct SigmoidAndLog {
    Vec value, minus_log;
};
[[gnu::always_inline]] inline SigmoidAndLog sigmoid_and_log(Vec x) {
    const Vec t = exp_bounded(minus_abs(x)), s = t * reciprocal(broadcast(2.0f) + t), z = s * s;
    Vec series = broadcast(1.0f / 15);
    for (const float c : {1.0f / 13, 1.0f / 11, 1.0f / 9, 1.0f / 7, 1.0f / 5, 1.0f / 3, 1.0f})
        series = fma(series, z, broadcast(c));
    const Vec p = reciprocal(broadcast(1.0f) + t);
    return {select(x < zero(), t * p, p), fma(s + s, series, max(zero(), zero() - x))};
}

// The largest values of a row one by one, of equal ones the first. `values` are whole vectors; values that were taken,
// or were -infinity from the beginning, do not count. A vector's largest value is stored, so taking one reads a single
// vector again.
class Taking {
  public:
    Taking(float* values, int64_t n, float* maxima) : values_(values), maxima_(maxima), vectors_((n - 1) / kLanes + 1) {
        for (int64_t i = 0; i < vectors_; ++i) maxima_[i] = reduce_max(load(values_ + i * kLanes, Full{}));
    }

    int64_t take() {
        int64_t best = 0;
        for (int64_t i = 1; i < vectors_; ++i)
            if (maxima_[i] > maxima_[best]) best = i;
        float* vector = values_ + best * kLanes;
        int64_t lane = 0;
        while (lane < kLanes - 1 && vector[lane] != maxima_[best]) ++lane;
        vector[lane] = -kInfinity;
        maxima_[best] = reduce_max(load(vector, Full{}));
        return best * kLanes + lane;
    }

  private:
    float* values_;
    float* maxima_;
    int64_t vectors_;
};

// Maps x to a score that orders experts: NaN becomes infinity, any other value a finite number.
[[gnu::always_inline]] inline Vec to_score(Vec x) {
    const Vec bounded = min(broadcast(kLargest), max(broadcast(-kLargest), x));  // NaN stays
    return select(bounded >= broadcast(-kLargest), bounded, broadcast(kInfinity));
}

struct Scratch {
    RowArray p, score, group, sums, maxima;
};

// Scores of groups that are not chosen become -infinity.
void keep_chosen_groups(const Routing& r, int64_t E, Scratch& s) {
    const int64_t width = E / r.groups, best = r.group_best;
    for (int64_t g = 0; g < r.groups; ++g) {
        const float* own = s.score.at + g * width;
        s.group.set(width, -kInfinity, [&](int64_t e, auto part) { return load(own + e, part); });
        Taking taking(s.group.at, width, s.maxima.at);
        float sum = 0;
        for (int64_t i = 0; i < best; ++i) sum += own[taking.take()];
        s.sums.at[g] = sum < -kLargest ? -kLargest : sum;
    }
    for (int64_t g = r.groups; g % kLanes != 0; ++g) s.sums.at[g] = -kInfinity;
    Taking taking(s.sums.at, r.groups, s.maxima.at);
    for (int64_t i = 0; i < r.chosen_groups; ++i) taking.take();
    for (int64_t g = 0; g < r.groups; ++g)
        if (s.sums.at[g] != -kInfinity)  // not taken
            for (int64_t e = g * width; e < (g + 1) * width; ++e) s.score.at[e] = -kInfinity;
}

// Statistics of the probabilities p of a row.
struct Sums {
    float log_sum;  // ln sum exp(x)
    float total;    // of p
    float entropy;
};

// With d = x - max x, S = sum e^d: p = e^d / S, and the entropy ln S + sum e^d (-d) / S has no negative term.
Sums softmax(const float* x, int64_t E, RowArray& p) {
    Vec most = broadcast(-kInfinity);
    for_vectors(0, E / kLanes * kLanes, [&](int64_t e, auto part) { most = max(most, load(x + e, part)); });
    float largest = reduce_max(most);
    for (int64_t e = E / kLanes * kLanes; e < E; ++e) largest = x[e] > largest ? x[e] : largest;
    const auto sums = row_sums<2>(E, [&](int64_t e, auto part) {
        const Vec d = load(x + e, part) - broadcast(largest), power = exp_bounded(d);
        store(power, p.at + e, Full{});
        return Vecs<2>{{power, zero_unless(not_less(d, broadcast(kLeastExponent)), power * (zero() - d))}};
    });
    const float S = sums.v[0], log = __builtin_logf(S);
    const Vec factor = broadcast(1.0f / S);
    for_vectors(0, E, [&](int64_t e, auto) { store(load(p.at + e, Full{}) * factor, p.at + e, Full{}); });
    return {largest + log, 1, log + sums.v[1] / S};
}

// -sum_e s ln s with s = p / P is ln P + sum_e p (-ln p) / P.
Sums sigmoids(const float* x, int64_t E, RowArray& p) {
    Sums result = softmax(x, E, p);
    const auto sums = row_sums<2>(E, [&](int64_t e, auto part) {
        const auto [value, minus_log] = sigmoid_and_log(load(x + e, part));
        store(value, p.at + e, Full{});
        return Vecs<2>{{value, zero_unless(not_less(value, broadcast(kLeastNormal)), value * minus_log)}};
    });
    result.total = sums.v[0];
    result.entropy = __builtin_logf(sums.v[0]) + sums.v[1] / sums.v[0];
    return result;
}

// Without bias and groups the order of p is that of the logits, whose differences are not lost to rounding.
void set_scores(const Routing& r, const float* x, int64_t E, bool all_nan, Scratch& s) {
    const float* bias = r.bias.as<const float>();
    const bool by_logits = bias == nullptr && r.groups == 1 && !all_nan;
    s.score.set(E, -kInfinity, [&](int64_t e, auto part) {
        if (by_logits) return to_score(load(x + e, part));
        const Vec p = load(s.p.at + e, Full{});
        return to_score(bias == nullptr ? p : p + load(bias + e, part));
    });
}

void route_row(const Routing& r, int64_t n, int64_t E, int64_t k, Scratch& s) {
    const float* x = r.logits.as<const float>() + n * E;
    const Sums sums = r.sigmoid ? sigmoids(x, E, s.p) : softmax(x, E, s.p);
    r.entropy.as<float>()[n] = sums.entropy;
    r.log_sum.as<float>()[n] = sums.log_sum;
    if (float* shares = r.shares.as<float>()) {
        const Vec factor = broadcast(1.0f / sums.total);
        for_vectors(0, E,
                    [&](int64_t e, auto part) { store(load(s.p.at + e, Full{}) * factor, shares + n * E + e, part); });
    }
    set_scores(r, x, E, !r.sigmoid && sums.log_sum != sums.log_sum, s);
    if (r.groups > 1) keep_chosen_groups(r, E, s);
    Taking taking(s.score.at, E, s.maxima.at);
    int32_t* experts = r.experts.as<int32_t>() + n * k;
    float* weights = r.weights.as<float>() + n * k;
    float chosen = 0;
    for (int64_t j = 0; j < k; ++j) {
        const int64_t e = taking.take();
        experts[j] = static_cast<int32_t>(e);
        weights[j] = s.p.at[e];
        chosen += s.p.at[e];
    }
    const float factor = r.normalise ? r.scale / (r.epsilon + chosen) : r.scale;
    for (int64_t j = 0; j < k; ++j) weights[j] *= factor;
}

void route(const Stream& stream, const Routing& r) {
    const int64_t N = size(r.logits, 0), E = size(r.logits, 1), k = size(r.experts, 1);
    parallel_for(stream, N, row_grain(8 * E), [&](int64_t begin, int64_t end) {
        Scratch scratch;
        for (int64_t n = begin; n < end; ++n) route_row(r, n, E, k, scratch);
    });
}

// The formulas are in reference/experts.cpp.
void route_row_backward(const RoutingBackward& b, int64_t n, int64_t E, int64_t k, RowArray& p, RowArray& dp) {
    const Routing& r = b.forward;
    const float* x = r.logits.as<const float>() + n * E;
    const float log_sum = r.log_sum.as<const float>()[n];
    const auto soft = [&](int64_t e, auto part) { return exp(load(x + e, part) - broadcast(log_sum)); };
    if (r.sigmoid)
        p.set(E, 0, [&](int64_t e, auto part) { return sigmoid<float>(load(x + e, part)).value; });
    else
        p.set(E, 0, soft);
    const auto p_at = [&](int64_t e) { return load(p.at + e, Full{}); };
    if (b.dshares.data != nullptr) {
        const int64_t segment = b.segments.data == nullptr ? 0 : b.segments.as<const int32_t>()[n];
        const float* D = b.dshares.as<const float>() + segment * E;
        float total = 1, mean = 0;  // softmax's own backward takes the mean away
        if (r.sigmoid) {
            const auto sums = row_sums<2>(E, [&](int64_t e, auto part) {
                return Vecs<2>{{p_at(e), p_at(e) * load(D + e, part)}};
            });
            total = sums.v[0];
            mean = sums.v[1] / total;
        }
        dp.set(E, 0,
               [&](int64_t e, auto part) { return (load(D + e, part) - broadcast(mean)) * broadcast(1.0f / total); });
    } else {
        dp.set(E, 0, [](int64_t, auto) { return zero(); });
    }
    const int32_t* experts = r.experts.as<const int32_t>() + n * k;
    const float* g = b.dweights.as<const float>() + n * k;
    float chosen = r.epsilon, g_p = 0;
    for (int64_t j = 0; j < k; ++j) {
        chosen += p.at[experts[j]];
        g_p += g[j] * p.at[experts[j]];
    }
    const float factor = r.normalise ? r.scale / chosen : r.scale, mean = r.normalise ? g_p / chosen : 0;
    for (int64_t j = 0; j < k; ++j) dp.at[experts[j]] += factor * (g[j] - mean);

    const auto dp_at = [&](int64_t e) { return load(dp.at + e, Full{}); };
    float* dx = b.dlogits.as<float>() + n * E;
    const Vec z = broadcast(2 * b.z_scale * log_sum);
    if (r.sigmoid) {
        for_vectors(0, E, [&](int64_t e, auto part) {
            const Sigmoid s = sigmoid<float>(load(x + e, part));
            Vec d = dp_at(e) * s.value * s.complement;
            if (b.z_scale != 0) d = fma(z, soft(e, part), d);
            store(d, dx + e, part);
        });
        return;
    }
    const Vec p_dp = broadcast(row_sum(E, [&](int64_t e, auto) { return p_at(e) * dp_at(e); }));
    for_vectors(0, E, [&](int64_t e, auto part) { store(p_at(e) * (dp_at(e) - p_dp + z), dx + e, part); });
}

void route_backward(const Stream& stream, const RoutingBackward& b) {
    const int64_t N = size(b.dlogits, 0), E = size(b.dlogits, 1), k = size(b.forward.experts, 1);
    parallel_for(stream, N, row_grain(8 * E), [&](int64_t begin, int64_t end) {
        RowArray p, dp;
        for (int64_t n = begin; n < end; ++n) route_row_backward(b, n, E, k, p, dp);
    });
}

void balance(const Stream& stream, View bias, View counts, float mean, float rate) {
    float* const to = bias.as<float>();
    const float* const count = counts.as<const float>();
    for_vectors_parallel(stream, numel(bias), [=](int64_t e, auto part) {
        const Vec missing = broadcast(mean) - load(count + e, part), before = load(to + e, part);
        const Vec less = select(missing < zero(), before - broadcast(rate), before);
        store(select(missing > zero(), before + broadcast(rate), less), to + e, part);
    });
}

}  // namespace

void fill_routing(KernelTable& table) {
    table.route = route;
    table.route_backward = route_backward;
    table.balance = balance;
}

}  // namespace tutti::kernels::TUTTI_ISA
