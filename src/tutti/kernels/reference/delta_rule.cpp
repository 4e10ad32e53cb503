// kernels/reference/delta_rule.cpp: the gated delta rule, token by token, forward and backward, and its decay.
#include <algorithm>
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
          scale_(1 / std::sqrt(static_cast<double>(Dk_))),
          skip_(f.skip.defined() ? load(f.skip, h) : 0) {}

    int64_t key_head() const { return key_head_; }
    double scale() const { return scale_; }
    Token token(int64_t t) const {
        const bool first = load_index(f_.positions, offset(f_.positions, n_, t)) == 0;
        const Row q = row_at(f_.query, n_, t, key_head_), k = row_at(f_.key, n_, t, key_head_);
        const double b = load(f_.b, offset(f_.b, n_, t, h_));
        return {.q = f_.corrects ? unit(q, scale_) : silu(q),
                .k = f_.corrects ? unit(k, 1) : silu(k),
                .v = silu(row_at(f_.value, n_, t, h_)),
                .alpha = first ? 0 : std::exp(load(f_.g, offset(f_.g, n_, t, h_))),
                .beta = f_.corrects ? sigmoid(b) : b};
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
        d = f_.corrects ? read(S, x.k) : Row(Dv_, 0);
        for (size_t j = 0; j < Dv_; ++j) d[j] = x.beta * (x.v[j] - d[j]);
        write(S, x.k, d);
    }
    // o of a token, from the state after it.
    Row output(const Token& x, const Row& S) const {
        Row o = read(S, x.q);
        for (size_t j = 0; j < Dv_; ++j) o[j] += skip_ * x.v[j];
        return o;
    }
    double skip() const { return skip_; }

  private:
    int64_t first_of(size_t size) const { return (n_ * f_.value.shape[2] + h_) * static_cast<int64_t>(size); }

    const DeltaRule& f_;
    int64_t n_, h_, key_head_;
    size_t Dk_, Dv_;
    double scale_, skip_;
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
            store_row(o, n, t, h, head.output(x, S));
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
            const Row m = f.corrects ? head.read(P, x.k) : Row(dd.size(), 0);
            double dbeta = 0;
            for (size_t j = 0; j < dd.size(); ++j) {
                dbeta += dd[j] * (x.v[j] - m[j]);
                dv[j] = x.beta * dd[j] + head.skip() * dout[j];
                dm[j] *= -x.beta;
            }
            if (f.corrects) add(dkey, head.read_values(P, dm));
            add(dk[at(n, t, head.key_head())], dkey);
            if (f.corrects) head.write(G, x.k, dm);
            const double dalpha = dot(G, S[i]);
            for (double& g : G) g *= x.alpha;
            store_row(b.dvalue, n, t, h, silu_backward(row_at(f.value, n, t, h), dv));
            store(b.dg, offset(b.dg, n, t, h), dalpha * x.alpha);
            store(b.db, offset(b.db, n, t, h), f.corrects ? dbeta * x.beta * (1 - x.beta) : dbeta);
        }
        head.store_state(b.dbefore, G);
    });
    for (int64_t n = 0; n < B; ++n)
        for (int64_t t = 0; t < T; ++t)
            for (int64_t h = 0; h < Hk; ++h) {
                const double scale = 1 / std::sqrt(static_cast<double>(none.size()));
                const Row query = row_at(f.query, n, t, h), key = row_at(f.key, n, t, h);
                const Row &to_q = dq[at(n, t, h)], &to_k = dk[at(n, t, h)];
                store_row(b.dquery, n, t, h,
                          f.corrects ? unit_backward(query, scale, to_q) : silu_backward(query, to_q));
                store_row(b.dkey, n, t, h, f.corrects ? unit_backward(key, 1, to_k) : silu_backward(key, to_k));
            }
}

void delta_rule_backward_skip(const Stream&, View dout, View value, View dskip) {
    for (int64_t n = 0; n < value.shape[0]; ++n)
        for (int64_t t = 0; t < value.shape[1]; ++t)
            for (int64_t h = 0; h < value.shape[2]; ++h)
                store(dskip, h, load(dskip, h) + dot(row_at(dout, n, t, h), silu(row_at(value, n, t, h))));
}

// The step of element i, its slope to x + dt_bias, and -e^a_log.
struct Step {
    double dt, slope, rate;
};
Step step_of(const Decay& f, int64_t i) {
    const int64_t h = i % f.a_log.numel();
    const double shifted = load(f.x, i) + load(f.dt_bias, h), dt = softplus(shifted);
    const double least = f.range.least, most = f.range.most;
    return {std::clamp(dt, least, most), dt < least || dt > most ? 0 : sigmoid(shifted), -std::exp(load(f.a_log, h))};
}
// The gradient of x.
double step_backward(const Step& s, const View& dg, const View& ddt, int64_t i) {
    return (load(dg, i) * s.rate + (ddt.defined() ? load(ddt, i) : 0)) * s.slope;
}

void decay_forward(const Stream&, const Decay& f, View g, View dt) {
    for (int64_t i = 0; i < f.x.numel(); ++i) {
        const Step s = step_of(f, i);
        store(g, i, s.rate * s.dt);
        if (dt.defined()) store(dt, i, s.dt);
    }
}

void decay_backward_input(const Stream&, const Decay& f, View dg, View ddt, View dx) {
    for (int64_t i = 0; i < f.x.numel(); ++i) store(dx, i, step_backward(step_of(f, i), dg, ddt, i));
}

void decay_backward_weight(const Stream&, const Decay& f, View dg, View ddt, View da_log, View ddt_bias) {
    const int64_t H = f.a_log.numel();
    for (int64_t h = 0; h < H; ++h) {
        double of_log = load(da_log, h), of_bias = load(ddt_bias, h);
        for (int64_t i = h; i < f.x.numel(); i += H) {
            const Step s = step_of(f, i);
            of_log += load(dg, i) * s.rate * s.dt;
            of_bias += step_backward(s, dg, ddt, i);
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
    table.delta_rule_backward_skip = delta_rule_backward_skip;
    table.delta_rule_workspace = [](const Stream&, const Shape&, const Shape&, bool, bool) -> int64_t { return 0; };
}

}  // namespace tutti::kernels::reference
