// kernels/reference/delta_rule.cpp: the gated delta rule, token by token, forward and backward, and its decay.
#include <cmath>
#include <vector>

#include "tutti/kernels/reference/element.h"
#include "tutti/kernels/reference/fill.h"

namespace tutti::kernels::reference {

namespace {

using Row = std::vector<double>;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
// ln(1 + e^x)
double softplus(double x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); }

double dot(const Row& a, const Row& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
}

Row row_at(const View& x, int64_t n, int64_t t, int64_t h) {
    Row row(static_cast<size_t>(x.shape[3]));
    for (size_t i = 0; i < row.size(); ++i) row[i] = load(x, offset(x, n, t, h, static_cast<int64_t>(i)));
    return row;
}
void store_row(const View& y, int64_t n, int64_t t, int64_t h, const Row& row) {
    for (size_t i = 0; i < row.size(); ++i) store(y, offset(y, n, t, h, static_cast<int64_t>(i)), row[i]);
}
void add(Row& sum, const Row& row) {
    for (size_t i = 0; i < row.size(); ++i) sum[i] += row[i];
}

Row silu(Row x) {
    for (double& v : x) v *= sigmoid(v);
    return x;
}
// The gradient of x from that of silu(x).
Row silu_backward(const Row& x, Row d) {
    for (size_t i = 0; i < x.size(); ++i) d[i] *= sigmoid(x[i]) * (1 + x[i] * (1 - sigmoid(x[i])));
    return d;
}
// `scale` times unit(silu(x)).
Row unit(const Row& x, double scale) {
    Row s = silu(x);
    const double factor = scale / std::sqrt(dot(s, s) + double{kUnitEpsilon});
    for (double& v : s) v *= factor;
    return s;
}
// The gradient of x from that of unit().
Row unit_backward(const Row& x, double scale, Row d) {
    const Row s = silu(x);
    const double r = 1 / std::sqrt(dot(s, s) + double{kUnitEpsilon}), along = dot(d, s) * r * r;
    for (size_t i = 0; i < x.size(); ++i) d[i] = scale * r * (d[i] - along * s[i]);
    return silu_backward(x, std::move(d));
}

// The inputs of one token and value head.
struct Token {
    Row q, k, v;
    double alpha, beta;
};

class Head {
  public:
    Head(const DeltaRule& f, int64_t n, int64_t h)
        : f_(f),
          n_(n),
          h_(h),
          key_head_(h / (f.value.shape[2] / f.key.shape[2])),
          Dk_(static_cast<size_t>(f.key.shape[3])),
          Dv_(static_cast<size_t>(f.value.shape[3])),
          scale_(1 / std::sqrt(static_cast<double>(Dk_))) {}

    int64_t key_head() const { return key_head_; }
    double scale() const { return scale_; }
    Token token(int64_t t) const {
        const bool first = load_index(f_.positions, offset(f_.positions, n_, t)) == 0;
        return {.q = unit(row_at(f_.query, n_, t, key_head_), scale_),
                .k = unit(row_at(f_.key, n_, t, key_head_), 1),
                .v = silu(row_at(f_.value, n_, t, h_)),
                .alpha = first ? 0 : std::exp(load(f_.g, offset(f_.g, n_, t, h_))),
                .beta = sigmoid(load(f_.b, offset(f_.b, n_, t, h_)))};
    }
    // S (Dk, Dv), row by row.
    Row state(const View& from) const {
        Row S(Dk_ * Dv_, 0);
        for (size_t i = 0; from.defined() && i < S.size(); ++i)
            S[i] = load(from, first_of(S.size()) + static_cast<int64_t>(i));
        return S;
    }
    void store_state(const View& to, const Row& S) const {
        for (size_t i = 0; to.defined() && i < S.size(); ++i)
            store(to, first_of(S.size()) + static_cast<int64_t>(i), S[i]);
    }

    // S^T k, (Dv)
    Row read(const Row& S, const Row& k) const {
        Row y(Dv_, 0);
        for (size_t i = 0; i < Dk_; ++i)
            for (size_t j = 0; j < Dv_; ++j) y[j] += S[i * Dv_ + j] * k[i];
        return y;
    }
    // S d, (Dk)
    Row read_values(const Row& S, const Row& d) const {
        Row y(Dk_, 0);
        for (size_t i = 0; i < Dk_; ++i)
            for (size_t j = 0; j < Dv_; ++j) y[i] += S[i * Dv_ + j] * d[j];
        return y;
    }
    // S += k d^T
    void write(Row& S, const Row& k, const Row& d) const {
        for (size_t i = 0; i < Dk_; ++i)
            for (size_t j = 0; j < Dv_; ++j) S[i * Dv_ + j] += k[i] * d[j];
    }
    // The state after a token; `d` is what the token writes.
    void step(const Token& x, Row& S, Row& d) const {
        for (double& s : S) s *= x.alpha;
        d = read(S, x.k);
        for (size_t j = 0; j < Dv_; ++j) d[j] = x.beta * (x.v[j] - d[j]);
        write(S, x.k, d);
    }

  private:
    int64_t first_of(size_t size) const { return (n_ * f_.value.shape[2] + h_) * static_cast<int64_t>(size); }

    const DeltaRule& f_;
    int64_t n_, h_, key_head_;
    size_t Dk_, Dv_;
    double scale_;
};

template <class Visit>
void for_heads(const DeltaRule& f, const Visit& visit) {
    for (int64_t n = 0; n < f.value.shape[0]; ++n)
        for (int64_t h = 0; h < f.value.shape[2]; ++h) visit(n, h, Head(f, n, h));
}

void delta_rule_forward(const Stream&, const DeltaRule& f, View o, View after) {
    for_heads(f, [&](int64_t n, int64_t h, const Head& head) {
        Row S = head.state(f.before), d;
        for (int64_t t = 0; t < f.value.shape[1]; ++t) {
            const Token x = head.token(t);
            head.step(x, S, d);
            store_row(o, n, t, h, head.read(S, x.q));
        }
        head.store_state(after, S);
    });
}

// From the last token to the first, with G the gradient of S.
void delta_rule_backward(const Stream&, const DeltaRule& f, const DeltaRuleBackward& b) {
    const int64_t B = f.key.shape[0], T = f.key.shape[1], Hk = f.key.shape[2];
    const Row none(static_cast<size_t>(f.key.shape[3]), 0);
    std::vector<Row> dq(static_cast<size_t>(B * T * Hk), none), dk = dq;  // of unit()
    const auto at = [&](int64_t n, int64_t t, int64_t h) { return static_cast<size_t>((n * T + t) * Hk + h); };
    for_heads(f, [&](int64_t n, int64_t h, const Head& head) {
        std::vector<Row> S = {head.state(f.before)}, d;  // before each token
        for (int64_t t = 0; t < T; ++t) {
            S.push_back(S.back());
            head.step(head.token(t), S.back(), d.emplace_back());
        }
        Row G = head.state(b.after);
        for (int64_t t = T - 1; t >= 0; --t) {
            const auto i = static_cast<size_t>(t);
            const Token x = head.token(t);
            const Row dout = row_at(b.dout, n, t, h);
            head.write(G, x.q, dout);
            add(dq[at(n, t, head.key_head())], head.read_values(S[i + 1], dout));
            const Row dd = head.read(G, x.k);
            Row dkey = head.read_values(G, d[i]), P = S[i], dv = dd, dm = dd;
            for (double& p : P) p *= x.alpha;
            const Row m = head.read(P, x.k);
            double dbeta = 0;
            for (size_t j = 0; j < dd.size(); ++j) {
                dbeta += dd[j] * (x.v[j] - m[j]);
                dv[j] *= x.beta;
                dm[j] *= -x.beta;
            }
            add(dkey, head.read_values(P, dm));
            add(dk[at(n, t, head.key_head())], dkey);
            head.write(G, x.k, dm);
            const double dalpha = dot(G, S[i]);
            for (double& g : G) g *= x.alpha;
            store_row(b.dvalue, n, t, h, silu_backward(row_at(f.value, n, t, h), dv));
            store(b.dg, offset(b.dg, n, t, h), dalpha * x.alpha);
            store(b.db, offset(b.db, n, t, h), dbeta * x.beta * (1 - x.beta));
        }
        head.store_state(b.dbefore, G);
    });
    for (int64_t n = 0; n < B; ++n)
        for (int64_t t = 0; t < T; ++t)
            for (int64_t h = 0; h < Hk; ++h) {
                const double scale = 1 / std::sqrt(static_cast<double>(none.size()));
                store_row(b.dquery, n, t, h, unit_backward(row_at(f.query, n, t, h), scale, dq[at(n, t, h)]));
                store_row(b.dkey, n, t, h, unit_backward(row_at(f.key, n, t, h), 1, dk[at(n, t, h)]));
            }
}

void decay_forward(const Stream&, View x, View a_log, View dt_bias, View g) {
    const int64_t H = a_log.numel();
    for (int64_t i = 0; i < x.numel(); ++i)
        store(g, i, -std::exp(load(a_log, i % H)) * softplus(load(x, i) + load(dt_bias, i % H)));
}

void decay_backward_input(const Stream&, View dg, View x, View a_log, View dt_bias, View dx) {
    const int64_t H = a_log.numel();
    for (int64_t i = 0; i < x.numel(); ++i)
        store(dx, i, -load(dg, i) * std::exp(load(a_log, i % H)) * sigmoid(load(x, i) + load(dt_bias, i % H)));
}

void decay_backward_weight(const Stream&, View dg, View x, View a_log, View dt_bias, View da_log, View ddt_bias) {
    const int64_t H = a_log.numel();
    for (int64_t h = 0; h < H; ++h) {
        const double A = -std::exp(load(a_log, h));
        double of_log = load(da_log, h), of_bias = load(ddt_bias, h);
        for (int64_t i = h; i < x.numel(); i += H) {
            const double shifted = load(x, i) + load(dt_bias, h);
            of_log += load(dg, i) * A * softplus(shifted);
            of_bias += load(dg, i) * A * sigmoid(shifted);
        }
        store(da_log, h, of_log);
        store(ddt_bias, h, of_bias);
    }
}

}  // namespace

void fill_delta_rule(KernelTable& table) {
    table.decay_forward = decay_forward;
    table.decay_backward_input = decay_backward_input;
    table.decay_backward_weight = decay_backward_weight;
    table.delta_rule_forward = delta_rule_forward;
    table.delta_rule_backward = delta_rule_backward;
    table.delta_rule_workspace = [](const Stream&, const Shape&, const Shape&, bool) -> int64_t { return 0; };
}

}  // namespace tutti::kernels::reference
