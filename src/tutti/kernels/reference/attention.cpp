// kernels/reference/attention.cpp: softmax attention by its definition (Vaswani et al. 2017) with grouped queries,
// and its backward in the form of Dao et al. 2022, appendix B; rotary position embedding (Su et al. 2021). Letters: S
// scores, P probabilities, O output.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tutti/kernels/reference/element.h"
#include "tutti/kernels/reference/fill.h"

namespace tutti::kernels::reference {

namespace {

// Keys that query i of batch entry b attends to: [first, end), none where end <= first.
struct Keys {
    int64_t first, end;
};
Keys visible_keys(const AttentionMask& mask, int64_t Tk, int64_t b, int64_t i) {
    const int64_t last = i + mask.query_offset - mask.key_offset;  // the key at the query's own position
    Keys keys{0, mask.causal ? std::clamp<int64_t>(last + 1, 0, Tk) : Tk};
    if (mask.window > 0) keys.first = std::max(keys.first, last - mask.window + 1);
    if (mask.first_key.defined())
        keys.first = std::max(keys.first, load_index(mask.first_key, offset(mask.first_key, b, i)) - mask.key_offset);
    return keys;
}

// sum_d a[b, i, h, d] c[b, j, g, d]
double dot(const View& a, int64_t b, int64_t i, int64_t h, const View& c, int64_t j, int64_t g) {
    double total = 0;
    for (int64_t d = 0; d < a.shape[3]; ++d) total += load(a, offset(a, b, i, h, d)) * load(c, offset(c, b, j, g, d));
    return total;
}

// S = scale q.k, or c tanh(scale q.k / c), and the factor dS / d(scale q.k) = 1 - (S / c)^2.
double capped(double score, float cap) { return cap > 0 ? cap * std::tanh(score / cap) : score; }
double slope_of(double S, float cap) { return cap > 0 ? 1 - S / cap * (S / cap) : 1; }

// S_ij = scale q_i.k_j, capped;  lse_i = ln sum_j exp(S_ij);  P_ij = exp(S_ij - lse_i);  O_i = sum_j P_ij v_j
// A query that sees no key (a block that ring attention masks) has O_i = 0 and lse_i = -infinity.
void attention_forward(const Stream&, const AttentionForward& a) {
    const int64_t B = a.q.shape[0], Tq = a.q.shape[1], H = a.q.shape[2], Dv = a.v.shape[3];
    const int64_t Tk = a.k.shape[1], group = H / a.k.shape[2];
    std::vector<double> p(static_cast<size_t>(Tk));
    for (int64_t b = 0; b < B; ++b)
        for (int64_t h = 0; h < H; ++h)
            for (int64_t i = 0; i < Tq; ++i) {
                const int64_t g = h / group;
                const auto [first, end] = visible_keys(a.mask, Tk, b, i);
                double largest = -std::numeric_limits<double>::infinity(), total = 0;
                for (int64_t j = first; j < end; ++j) {
                    p[static_cast<size_t>(j)] = capped(a.scale * dot(a.q, b, i, h, a.k, j, g), a.cap);
                    largest = std::max(largest, p[static_cast<size_t>(j)]);
                }
                // exp(S - largest) instead of exp(S): the same quotient without overflow.
                for (int64_t j = first; j < end; ++j) {
                    p[static_cast<size_t>(j)] = std::exp(p[static_cast<size_t>(j)] - largest);
                    total += p[static_cast<size_t>(j)];
                }
                for (int64_t j = first; j < end; ++j) p[static_cast<size_t>(j)] /= total;
                for (int64_t d = 0; d < Dv; ++d) {
                    double out = 0;
                    for (int64_t j = first; j < end; ++j)
                        out += p[static_cast<size_t>(j)] * load(a.v, offset(a.v, b, j, g, d));
                    store(a.o, offset(a.o, b, i, h, d), out);
                }
                store(a.lse, offset(a.lse, b, h, i), first < end ? largest + std::log(total) : largest);
            }
}

// With D_i = dO_i.O_i:  dP_ij = dO_i.v_j;  dS_ij = P_ij (dP_ij - D_i), times the slope of the cap;
// dq_i = scale sum_j dS_ij k_j;  dk_j = scale sum_i dS_ij q_i;  dv_j = sum_i P_ij dO_i  (i also over a group's heads)
void attention_backward(const Stream&, const AttentionBackward& a) {
    const int64_t B = a.q.shape[0], Tq = a.q.shape[1], H = a.q.shape[2], D = a.q.shape[3], Dv = a.v.shape[3];
    const int64_t Tk = a.k.shape[1], group = H / a.k.shape[2];
    const auto at = [D](int64_t row, int64_t d) { return static_cast<size_t>(row * D + d); };
    const auto put = [&](const View& x, int64_t place, double value) {
        store(x, place, a.accumulate ? load(x, place) + value : value);
    };
    std::vector<double> dq(at(1, 0)), dk(at(Tk, 0)), dv(at(Tk, 0));
    for (int64_t b = 0; b < B; ++b)
        for (int64_t g = 0; g < a.k.shape[2]; ++g) {
            std::fill(dk.begin(), dk.end(), 0.0);
            std::fill(dv.begin(), dv.end(), 0.0);
            for (int64_t h = g * group; h < (g + 1) * group; ++h)
                for (int64_t i = 0; i < Tq; ++i) {
                    const double D_i = dot(a.dy, b, i, h, a.o, i, h), lse = load(a.lse, offset(a.lse, b, h, i));
                    std::fill(dq.begin(), dq.end(), 0.0);
                    const auto [first, end] = visible_keys(a.mask, Tk, b, i);
                    for (int64_t j = first; j < end; ++j) {
                        const double S = capped(a.scale * dot(a.q, b, i, h, a.k, j, g), a.cap);
                        const double P = std::exp(S - lse);
                        const double dS = P * (dot(a.dy, b, i, h, a.v, j, g) - D_i) * slope_of(S, a.cap);
                        for (int64_t d = 0; d < D; ++d) {
                            dq[at(0, d)] += a.scale * dS * load(a.k, offset(a.k, b, j, g, d));
                            dk[at(j, d)] += a.scale * dS * load(a.q, offset(a.q, b, i, h, d));
                        }
                        for (int64_t d = 0; d < Dv; ++d) dv[at(j, d)] += P * load(a.dy, offset(a.dy, b, i, h, d));
                    }
                    for (int64_t d = 0; d < D; ++d) put(a.dq, offset(a.dq, b, i, h, d), dq[at(0, d)]);
                }
            for (int64_t j = 0; j < Tk; ++j) {
                for (int64_t d = 0; d < D; ++d) put(a.dk, offset(a.dk, b, j, g, d), dk[at(j, d)]);
                for (int64_t d = 0; d < Dv; ++d) put(a.dv, offset(a.dv, b, j, g, d), dv[at(j, d)]);
            }
        }
}

void attention_merge(const Stream&, View o, View lse, View o_part, View lse_part) {
    const int64_t B = o.shape[0], T = o.shape[1], H = o.shape[2], D = o.shape[3];
    for (int64_t b = 0; b < B; ++b)
        for (int64_t h = 0; h < H; ++h)
            for (int64_t i = 0; i < T; ++i) {
                const double before = load(lse, offset(lse, b, h, i)), part = load(lse_part, offset(lse_part, b, h, i));
                if (std::isinf(part)) continue;
                const double largest = std::max(before, part);
                const double L = largest + std::log(std::exp(before - largest) + std::exp(part - largest));
                for (int64_t d = 0; d < D; ++d)
                    store(o, offset(o, b, i, h, d),
                          std::exp(before - L) * load(o, offset(o, b, i, h, d)) +
                              std::exp(part - L) * load(o_part, offset(o_part, b, i, h, d)));
                store(lse, offset(lse, b, h, i), L);
            }
}

void attention_sinks(const Stream&, View o, View lse, View sinks) {
    const int64_t B = o.shape[0], T = o.shape[1], H = o.shape[2], D = o.shape[3];
    for (int64_t b = 0; b < B; ++b)
        for (int64_t h = 0; h < H; ++h)
            for (int64_t i = 0; i < T; ++i) {
                const double before = load(lse, offset(lse, b, h, i)), sink = load(sinks, h);
                const double largest = std::max(before, sink);
                const double L = largest + std::log(std::exp(before - largest) + std::exp(sink - largest));
                for (int64_t d = 0; d < D; ++d)
                    store(o, offset(o, b, i, h, d), std::exp(before - L) * load(o, offset(o, b, i, h, d)));
                store(lse, offset(lse, b, h, i), L);
            }
}

void attention_sinks_backward(const Stream&, View dy, View o, View lse, View sinks, View dsinks) {
    const int64_t B = o.shape[0], T = o.shape[1], H = o.shape[2];
    for (int64_t h = 0; h < H; ++h) {
        double sum = load(dsinks, h);
        for (int64_t b = 0; b < B; ++b)
            for (int64_t i = 0; i < T; ++i)
                sum -= std::exp(load(sinks, h) - load(lse, offset(lse, b, h, i))) * dot(dy, b, i, h, o, i, h);
        store(dsinks, h, sum);
    }
}

// Rotary position embedding of pairs (a, b) of channels, (k, k + n/2) or (2k, 2k + 1):
// (x_a, x_b) = (x_a cos - x_b sin, x_b cos + x_a sin), angle of (position, k); inverse: minus angle
void rope(const Stream&, View x, View positions, View cosines, View sines, bool inverse, bool adjacent) {
    const int64_t N = x.shape[0], H = x.shape[1], half = cosines.shape[1];
    for (int64_t n = 0; n < N; ++n)
        for (int64_t h = 0; h < H; ++h)
            for (int64_t k = 0; k < half; ++k) {
                const int64_t a = adjacent ? 2 * k : k, b = adjacent ? 2 * k + 1 : k + half;
                const int64_t position = load_index(positions, n);
                const double cosine = load(cosines, offset(cosines, position, k));
                const double sine = load(sines, offset(sines, position, k)) * (inverse ? -1 : 1);
                const double first = load(x, offset(x, n, h, a)), second = load(x, offset(x, n, h, b));
                store(x, offset(x, n, h, a), first * cosine - second * sine);
                store(x, offset(x, n, h, b), second * cosine + first * sine);
            }
}

void sum_heads(const Stream&, View x, View y) {
    for (int64_t n = 0; n < y.shape[0]; ++n)
        for (int64_t d = 0; d < y.shape[1]; ++d) {
            double sum = 0;
            for (int64_t h = 0; h < x.shape[1]; ++h) sum += load(x, offset(x, n, h, d));
            store(y, offset(y, n, d), sum);
        }
}

void rope_table(const Stream&, View frequencies, double amplitude, View cosines, View sines) {
    for (int64_t p = 0; p < cosines.shape[0]; ++p)
        for (int64_t k = 0; k < cosines.shape[1]; ++k) {
            const double angle = static_cast<double>(p) * load(frequencies, k);
            store(cosines, offset(cosines, p, k), amplitude * std::cos(angle));
            store(sines, offset(sines, p, k), amplitude * std::sin(angle));
        }
}

}  // namespace

void fill_attention(KernelTable& table) {
    table.attention_implementations = [] { return "reference"; };
    table.attention_implementation = [](const Stream&, const AttentionForward&) { return "reference"; };
    table.attention_workspace = [](const Stream&, const Shape&, const Shape&, bool) -> int64_t { return 0; };
    table.attention_forward = attention_forward;
    table.attention_backward = attention_backward;
    table.attention_merge = attention_merge;
    table.attention_sinks = attention_sinks;
    table.attention_sinks_backward = attention_sinks_backward;
    table.own_value_width = true;
    table.sum_heads = sum_heads;
    table.rope = rope;
    table.rope_table = rope_table;
}

}  // namespace tutti::kernels::reference
