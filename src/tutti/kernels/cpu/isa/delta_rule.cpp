// kernels/cpu/isa/delta_rule.cpp: the gated delta rule by chunks of kChunk tokens (Yang, Kautz and Hatamizadeh 2024,
// section 3.3): within a chunk what the tokens write to the state solves a triangular system, and the rest are
// products of small matrices. A task is a key head with its value heads, or a part of them, chunk after chunk. All is
// f32. The scan of Mamba-2 is the same without L and K S: d = beta V.
//
// Of a chunk, with the state S before it, rows t and s of its tokens, and D(t, s) = alpha[s + 1] ... alpha[t] the decay
// from s to t, which is 0 across the beginning of a document:
//   d = (I + L)^-1 beta (V - gamma K S),  L(t, s) = beta[t] k[t].k[s] D(t, s) for s < t,  gamma[t] = alpha[0] ...
//   alpha[t] O = gamma Q S + (Q K^T D) d,          S' = gamma[last] S + (D(last, s) K)^T d.
#include "tutti/kernels/cpu/delta_rule_plan.h"
#include "tutti/kernels/cpu/isa/parts.h"
#include "tutti/kernels/cpu/isa/tile_product.h"

namespace tutti::kernels::TUTTI_ISA {
namespace {

using delta::kBlock, delta::kChunk, delta::Plan;

// A matrix in the workspace.
struct Matrix {
    float* data;
    int64_t row;  // floats to the next row
    float* at(int64_t r) const { return data + r * row; }
};

// c [+]= a b, or a^T b; M rows and N columns of c, N rounded up to whole vectors.
void multiply(Matrix a, Matrix b, Matrix c, int64_t M, int64_t N, int64_t K, bool add) {
    tile_product<float>({a.data, a.row, 1}, {b.data, b.row}, {c.data, c.row}, M, round_up(N, kLanes), K, add);
}
void multiply_transposed(Matrix a, Matrix b, Matrix c, int64_t M, int64_t N, int64_t K, bool add) {
    tile_product<float>({a.data, 1, a.row}, {b.data, b.row}, {c.data, c.row}, M, round_up(N, kLanes), K, add);
}
void transpose(Matrix x, int64_t rows, int64_t columns, Matrix y) {
    transpose_words(reinterpret_cast<const uint32_t*>(x.data), x.row, rows, columns,
                    reinterpret_cast<uint32_t*>(y.data), y.row);
}

// y = a x + b y; b 0: y is not read.
void combine(float a, const float* x, float b, float* y, int64_t n) {
    for_vectors(0, n, [&](int64_t i, auto part) {
        const Vec scaled = broadcast(a) * load(x + i, part);
        store(b == 0 ? scaled : fma(broadcast(b), load(y + i, part), scaled), y + i, part);
    });
}
float dot(const float* a, const float* b, int64_t n) {
    return row_sum(n, [&](int64_t i, auto part) { return load(a + i, part) * load(b + i, part); });
}

template <class T>
T* row_at(const View& x, int64_t n, int64_t t, int64_t h) {
    return x.as<T>() + n * stride(x, 0) + t * stride(x, 1) + h * stride(x, 2);
}

template <class T>
void load_row(const T* x, int64_t n, float* y) {
    for_vectors(0, n, [&](int64_t i, auto part) { store(load(x + i, part), y + i, part); });
}
template <class T>
void load_silu(const T* x, int64_t n, float* y) {
    for_vectors(0, n, [&](int64_t i, auto part) {
        const Vec v = load(x + i, part);
        store(v * sigmoid<float>(v).value, y + i, part);
    });
}
// `scale` times unit(silu(x)); returns what silu(x) is multiplied by.
template <class T>
float load_unit(const T* x, int64_t n, float scale, float* y) {
    load_silu(x, n, y);
    const float factor = scale / __builtin_sqrtf(dot(y, y, n) + kUnitEpsilon);
    combine(factor, y, 0, y, n);
    return factor;
}
// dx = d silu'(x)
template <class T>
void store_silu_gradient(const T* x, const float* d, int64_t n, T* dx) {
    for_vectors(0, n, [&](int64_t i, auto part) {
        const Vec v = load(x + i, part);
        const Sigmoid s = sigmoid<float>(v);
        store(load(d + i, part) * s.value * fma(v, s.complement, broadcast(1.0f)), dx + i, part);
    });
}

// What one thread has in the workspace. Rows of tokens (kChunk), of channels of keys (Dk) or of values (row_v).
struct Slot {
    Matrix k, q, weighted, kt;    // K; Q Dk^(-1/2); D(last, s) K; K^T
    Matrix kk, qk;                // K K^T, Q K^T
    Matrix decay, lower, scores;  // D; -L; Q K^T D
    Matrix v, p, d, o;            // silu(V); K S; d; O or Q S
    float *alpha, *gamma, *beta, *scale_k, *scale_q, *dbeta, *e;
    float* states;  // of the value heads, before the chunk
    // Of the backward.
    Matrix dk, dq, dstate_k;      // sums over the value heads; d (dS')^T
    Matrix dout, dd, dp;          // dO; d d and then of beta (V - gamma P); gradient of P
    Matrix dt, dkk, dqk, dl, ds;  // d^T; sums over the value heads; gradients of L and of scores
    Matrix transposed, other;     // S^T; (dS')^T
    float *dstates, *all;         // gradients of states after the chunk; states before each chunk

    Slot(const Plan& p_, float* memory, bool backward) {
        const auto take = [&](int64_t n) {
            float* taken = memory;
            memory += n;
            return taken;
        };
        const auto keys = [&] { return Matrix{take(kChunk * p_.row_k), p_.row_k}; };
        const auto values = [&] { return Matrix{take(kChunk * p_.row_v), p_.row_v}; };
        const auto square = [&] { return Matrix{take(kChunk * kChunk), kChunk}; };
        const auto vector = [&] { return take(kChunk); };
        k = keys(), q = keys(), weighted = keys();
        kt = {take(p_.row_k * kChunk), kChunk};
        kk = square(), qk = square(), decay = square(), lower = square(), scores = square();
        v = values(), p = values(), d = values(), o = values();
        alpha = vector(), gamma = vector(), beta = vector(), scale_k = vector(), scale_q = vector();
        dbeta = vector(), e = vector();
        states = take(p_.state);
        if (!backward) return;
        dk = keys(), dq = keys(), dstate_k = keys();
        dout = values(), dd = values(), dp = values();
        dt = {take(p_.row_v * kChunk), kChunk};
        dkk = square(), dqk = square(), dl = square(), ds = square();
        transposed = {take(p_.row_v * p_.row_k), p_.row_k}, other = {take(p_.row_v * p_.row_k), p_.row_k};
        dstates = take(p_.state);
        all = take(p_.chunks * p_.state);
    }
};

// A key head of a sequence with a part of its value heads, of the type T.
template <class T>
struct Task {
    const DeltaRule& f;
    const Plan& p;
    Slot& m;
    int64_t n, h, part;    // sequence, key head, part
    float* partials = {};  // of this task: of each token the gradients of its key and of its query; {}: one part

    int64_t value_head(int64_t g) const { return h * p.heads + part * p.group + g; }
    int64_t first_state() const { return (n * p.Hv + value_head(0)) * p.Dk * p.Dv; }
    float query_scale() const { return p.corrects ? 1 / __builtin_sqrtf(static_cast<float>(p.Dk)) : 1; }
    Matrix state(float* all, int64_t g) const { return {all + g * p.Dk * p.row_v, p.row_v}; }
    int64_t tokens(int64_t chunk) const { return smaller(kChunk, p.T - chunk * kChunk); }
    int64_t index(int64_t t, int64_t g) const { return (n * p.T + t) * p.Hv + value_head(g); }

    // The states (Dk, Dv) of a view (B, Hv, Dk, Dv); zeros without it.
    void load_states(const View& from, float* to) const {
        for (int64_t i = 0; i < p.group * p.Dk; ++i) {
            const float* row = from.data ? from.as<float>() + first_state() + i * p.Dv : nullptr;
            for_vectors(0, p.Dv, [&](int64_t c, auto lanes) {
                store(row ? load(row + c, lanes) : zero(), to + i * p.row_v + c, lanes);
            });
        }
    }
    void store_states(const float* from, const View& to) const {
        if (!to.data) return;
        for (int64_t i = 0; i < p.group * p.Dk; ++i)
            load_row(from + i * p.row_v, p.Dv, to.as<float>() + first_state() + i * p.Dv);
    }

    // k, q, kt, kk and qk of a chunk.
    void load_keys(int64_t chunk) const {
        const int64_t rows = tokens(chunk);
        for (int64_t r = 0; r < rows; ++r) {
            const T *key = row_at<const T>(f.key, n, chunk * kChunk + r, h),
                    *query = row_at<const T>(f.query, n, chunk * kChunk + r, h);
            if (p.corrects) {
                m.scale_k[r] = load_unit(key, p.Dk, 1, m.k.at(r));
                m.scale_q[r] = load_unit(query, p.Dk, query_scale(), m.q.at(r));
            } else {
                load_silu(key, p.Dk, m.k.at(r));
                load_silu(query, p.Dk, m.q.at(r));
            }
        }
        transpose(m.k, rows, p.Dk, m.kt);
        if (p.corrects) multiply(m.k, m.kt, m.kk, rows, rows, p.Dk, false);
        multiply(m.q, m.kt, m.qk, rows, rows, p.Dk, false);
    }

    // alpha, beta, gamma and decay of a chunk and value head.
    void load_gates(int64_t chunk, int64_t g) const {
        const int64_t rows = tokens(chunk), begin = chunk * kChunk;
        for (int64_t r = 0; r < rows; ++r) {
            m.alpha[r] = f.g.as<float>()[index(begin + r, g)];
            m.beta[r] = p.corrects ? value_of(f.b.as<T>()[index(begin + r, g)]) : f.b.as<float>()[index(begin + r, g)];
        }
        for_vectors(0, rows, [&](int64_t i, auto lanes) {
            store(exp(load(m.alpha + i, lanes)), m.alpha + i, lanes);
            if (p.corrects) store(sigmoid<float>(load(m.beta + i, lanes)).value, m.beta + i, lanes);
        });
        for (int64_t r = 0; r < rows; ++r) {
            if (index_at(f.positions, n * stride(f.positions, 0) + begin + r) == 0) m.alpha[r] = 0;
            m.gamma[r] = r == 0 ? m.alpha[0] : m.gamma[r - 1] * m.alpha[r];
            if (r > 0) combine(m.alpha[r], m.decay.at(r - 1), 0, m.decay.at(r), r);
            for (int64_t s = r; s < kChunk; ++s) m.decay.at(r)[s] = s == r ? 1 : 0;
        }
    }

    // lower, p, v and d; `S` is the state before the chunk.
    void solve(int64_t chunk, int64_t g, Matrix S) const {
        const int64_t rows = tokens(chunk);
        load_gates(chunk, g);
        for (int64_t r = 0; r < rows; ++r) {
            load_silu(row_at<const T>(f.value, n, chunk * kChunk + r, value_head(g)), p.Dv, m.v.at(r));
            combine(m.beta[r], m.v.at(r), 0, m.d.at(r), p.Dv);
        }
        if (!p.corrects) return;
        for (int64_t r = 0; r < rows; ++r)
            for_vectors(0, kChunk, [&](int64_t s, auto lanes) {
                const Vec l = load(m.kk.at(r) + s, lanes) * load(m.decay.at(r) + s, lanes);
                store(broadcast(-m.beta[r]) * l, m.lower.at(r) + s, lanes);
            });
        multiply(m.k, S, m.p, rows, p.Dv, p.Dk, false);
        for (int64_t r = 0; r < rows; ++r) combine(-m.beta[r] * m.gamma[r], m.p.at(r), 1, m.d.at(r), p.Dv);
        for (int64_t begin = 0; begin < rows; begin += kBlock) {
            const int64_t end = smaller(begin + kBlock, rows);
            if (begin > 0)
                multiply({m.lower.at(begin), kChunk}, m.d, {m.d.at(begin), m.d.row}, end - begin, p.Dv, begin, true);
            for (int64_t r = begin; r < end; ++r)
                for (int64_t s = begin; s < r; ++s) combine(m.lower.at(r)[s], m.d.at(s), 1, m.d.at(r), p.Dv);
        }
    }

    // S becomes the state after the chunk.
    void advance(int64_t rows, Matrix S) const {
        for (int64_t s = 0; s < rows; ++s) combine(m.decay.at(rows - 1)[s], m.k.at(s), 0, m.weighted.at(s), p.Dk);
        for (int64_t i = 0; i < p.Dk; ++i) combine(m.gamma[rows - 1], S.at(i), 0, S.at(i), p.Dv);
        multiply_transposed(m.weighted, m.d, S, p.Dk, p.Dv, rows, true);
    }

    // scores, and Q S in o.
    void score(int64_t rows, Matrix S) const {
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t s = 0; s < rows; ++s) m.scores.at(r)[s] = s > r ? 0 : m.qk.at(r)[s] * m.decay.at(r)[s];
        multiply(m.q, S, m.o, rows, p.Dv, p.Dk, false);
    }

    float skip(int64_t g) const { return f.skip.data ? value_of(f.skip.as<T>()[value_head(g)]) : 0; }

    void forward(const View& o, const View& after) const {
        load_states(f.before, m.states);
        for (int64_t chunk = 0; chunk < p.chunks; ++chunk) {
            const int64_t rows = tokens(chunk);
            load_keys(chunk);
            for (int64_t g = 0; g < p.group; ++g) {
                const Matrix S = state(m.states, g);
                solve(chunk, g, S);
                score(rows, S);
                for (int64_t r = 0; r < rows; ++r) combine(m.gamma[r], m.o.at(r), 0, m.o.at(r), p.Dv);
                multiply(m.scores, m.d, m.o, rows, p.Dv, rows, true);
                for (int64_t r = 0; r < rows; ++r) {
                    if (!p.corrects) combine(skip(g), m.v.at(r), 1, m.o.at(r), p.Dv);
                    T* out = row_at<T>(o, n, chunk * kChunk + r, value_head(g));
                    for_vectors(0, p.Dv,
                                [&](int64_t c, auto lanes) { store(load(m.o.at(r) + c, lanes), out + c, lanes); });
                }
                advance(rows, S);
            }
        }
        store_states(m.states, after);
    }

    // --- backward ---

    // The states before all chunks.
    void remember() const {
        load_states(f.before, m.all);
        for (int64_t chunk = 0; chunk + 1 < p.chunks; ++chunk) {
            float *from = m.all + chunk * p.state, *to = from + p.state;
            load_row(from, p.state, to);
            load_keys(chunk);
            for (int64_t g = 0; g < p.group; ++g) {
                solve(chunk, g, state(to, g));
                advance(tokens(chunk), state(to, g));
            }
        }
    }

    // dd becomes (I + L)^-T dd.
    void solve_transposed(int64_t rows) const {
        for (int64_t begin = (rows - 1) / kBlock * kBlock; begin >= 0; begin -= kBlock) {
            const int64_t end = smaller(begin + kBlock, rows);
            if (end < rows)
                multiply_transposed({m.lower.at(end) + begin, kChunk}, {m.dd.at(end), m.dd.row},
                                    {m.dd.at(begin), m.dd.row}, end - begin, p.Dv, rows - end, true);
            for (int64_t r = end - 1; r >= begin; --r)
                for (int64_t s = r + 1; s < end; ++s) combine(m.lower.at(s)[r], m.dd.at(s), 1, m.dd.at(r), p.Dv);
        }
    }

    // The gradient of ln alpha[t] is the sum over the decays D(r, s) with s < t <= r, which contain alpha[t], of D
    // times its gradient. Sums over s of a row come first, so that no term is added that must be subtracted again:
    // where alpha is small, so are all terms.
    //
    // The gradients of the squares L and scores: adds to dkk, dqk, dbeta, and to e, the gradients of ln alpha.
    void squares_backward(int64_t rows) const {
        transpose(m.d, rows, p.Dv, m.dt);
        if (p.corrects) multiply(m.dd, m.dt, m.dl, rows, rows, p.Dv, false);
        multiply(m.dout, m.dt, m.ds, rows, rows, p.Dv, false);
        for (int64_t r = 0; r < rows; ++r) {
            float before = 0;
            for (int64_t s = 0; s < r; ++s) {
                const float decay = m.decay.at(r)[s], of_scores = m.ds.at(r)[s] * decay;
                m.dqk.at(r)[s] += of_scores;
                before += of_scores * m.qk.at(r)[s];
                if (p.corrects) {
                    const float of_lower = -m.dl.at(r)[s] * decay, kk = m.kk.at(r)[s];
                    m.dkk.at(r)[s] += of_lower * m.beta[r];
                    m.dbeta[r] += of_lower * kk;
                    before += of_lower * m.beta[r] * kk;
                }
                m.e[s + 1] += before;
            }
            m.dqk.at(r)[r] += m.ds.at(r)[r];
        }
    }

    // From the gradient dS of the state after the chunk to that of S, the state before it: adds to dk, dq and e.
    void state_backward(int64_t rows, Matrix S, Matrix dS) const {
        transpose(dS, p.Dk, p.Dv, m.other);
        multiply(m.d, m.other, m.dstate_k, rows, p.Dk, p.Dv, false);
        float before = 0;
        for (int64_t s = 0; s < rows; ++s) {
            const float decay = m.decay.at(rows - 1)[s];
            combine(decay, m.dstate_k.at(s), 1, m.dk.at(s), p.Dk);
            if (s + 1 == rows) continue;
            before += decay * dot(m.k.at(s), m.dstate_k.at(s), p.Dk);
            m.e[s + 1] += before;
        }
        // gamma[t], and that of the last token in S', contain alpha of all tokens up to t.
        const float last = m.gamma[rows - 1];
        float later = 0;
        for (int64_t i = 0; i < p.Dk; ++i) later += last * dot(S.at(i), dS.at(i), p.Dv);
        for (int64_t t = rows - 1; t >= 0; --t) {
            const float of_p = p.corrects ? dot(m.dd.at(t), m.p.at(t), p.Dv) : 0;
            later += m.gamma[t] * (dot(m.dout.at(t), m.o.at(t), p.Dv) - m.beta[t] * of_p);
            m.e[t] += later;
            if (p.corrects) combine(-m.beta[t] * m.gamma[t], m.dd.at(t), 0, m.dp.at(t), p.Dv);
            combine(m.gamma[t], m.dout.at(t), 0, m.dout.at(t), p.Dv);
        }
        transpose(S, p.Dk, p.Dv, m.transposed);
        if (p.corrects) multiply(m.dp, m.transposed, m.dk, rows, p.Dk, p.Dv, true);
        multiply(m.dout, m.transposed, m.dq, rows, p.Dk, p.Dv, true);
        for (int64_t i = 0; i < p.Dk; ++i) combine(last, dS.at(i), 0, dS.at(i), p.Dv);
        if (p.corrects) multiply_transposed(m.k, m.dp, dS, p.Dk, p.Dv, rows, true);
        multiply_transposed(m.q, m.dout, dS, p.Dk, p.Dv, rows, true);
    }

    void value_head_backward(int64_t chunk, int64_t g, const DeltaRuleBackward& b) const {
        const int64_t rows = tokens(chunk), begin = chunk * kChunk;
        const Matrix S = state(m.all + chunk * p.state, g), dS = state(m.dstates, g);
        solve(chunk, g, S);
        score(rows, S);
        for (int64_t r = 0; r < rows; ++r) {
            load_row(row_at<const T>(b.dout, n, begin + r, value_head(g)), p.Dv, m.dout.at(r));
            combine(m.decay.at(rows - 1)[r], m.k.at(r), 0, m.weighted.at(r), p.Dk);
            m.e[r] = 0;
        }
        multiply_transposed(m.scores, m.dout, m.dd, rows, p.Dv, rows, false);
        multiply(m.weighted, dS, m.dd, rows, p.Dv, p.Dk, true);
        if (p.corrects) solve_transposed(rows);
        for (int64_t r = 0; r < rows; ++r) {
            m.dbeta[r] = dot(m.dd.at(r), m.v.at(r), p.Dv);
            if (p.corrects) m.dbeta[r] -= m.gamma[r] * dot(m.dd.at(r), m.p.at(r), p.Dv);
        }
        squares_backward(rows);
        state_backward(rows, S, dS);
        for (int64_t r = 0; r < rows; ++r) {
            const int64_t at = index(begin + r, g);
            b.dg.as<float>()[at] = m.e[r];
            combine(m.beta[r], m.dd.at(r), 0, m.dd.at(r), p.Dv);
            if (p.corrects) {
                store(broadcast(m.dbeta[r] * m.beta[r] * (1 - m.beta[r])), b.db.as<T>() + at, Tail{1});
            } else {
                b.db.as<float>()[at] = m.dbeta[r];
                load_row(row_at<T>(b.dout, n, begin + r, value_head(g)), p.Dv, m.dout.at(r));
                combine(skip(g), m.dout.at(r), 1, m.dd.at(r), p.Dv);
            }
            store_silu_gradient(row_at<const T>(f.value, n, begin + r, value_head(g)), m.dd.at(r), p.Dv,
                                row_at<T>(b.dvalue, n, begin + r, value_head(g)));
        }
    }

    // Of token t of the sequence, which is row r of a chunk, from dk and dq of the row.
    void store_key_gradients(int64_t t, int64_t r, float* dk, float* dq, const DeltaRuleBackward& b) const {
        const T *key = row_at<const T>(f.key, n, t, h), *query = row_at<const T>(f.query, n, t, h);
        T *dkey = row_at<T>(b.dkey, n, t, h), *dquery = row_at<T>(b.dquery, n, t, h);
        if (p.corrects) {
            store_unit_gradient(key, m.k.at(r), m.scale_k[r], 1, dk, dkey);
            store_unit_gradient(query, m.q.at(r), m.scale_q[r], query_scale(), dq, dquery);
        } else {
            store_silu_gradient(key, dk, p.Dk, dkey);
            store_silu_gradient(query, dq, p.Dk, dquery);
        }
    }
    float* partial(int64_t t) const { return partials + t * 2 * p.row_k; }
    // Of a task of part 0, from the sums of all parts.
    void add_parts(int64_t t, const DeltaRuleBackward& b) const {
        float* sum = partial(t);
        for (int64_t i = 1; i < p.parts; ++i) combine(1, sum + i * p.T * 2 * p.row_k, 1, sum, 2 * p.row_k);
        store_key_gradients(t, 0, sum, sum + p.row_k, b);
    }

    // The gradient of x from d, that of y = factor silu(x) = scale unit(silu(x)); d is changed.
    void store_unit_gradient(const T* x, const float* y, float factor, float scale, float* d, T* dx) const {
        combine(-factor * dot(d, y, p.Dk) / (scale * scale), y, factor, d, p.Dk);
        store_silu_gradient(x, d, p.Dk, dx);
    }

    void backward(const DeltaRuleBackward& b) const {
        remember();
        load_states(b.after, m.dstates);
        for (int64_t chunk = p.chunks - 1; chunk >= 0; --chunk) {
            const int64_t rows = tokens(chunk);
            load_keys(chunk);
            for (int64_t r = 0; r < rows; ++r) {
                for (int64_t i = 0; i < p.row_k; ++i) m.dk.at(r)[i] = m.dq.at(r)[i] = 0;
                for (int64_t s = 0; s < kChunk; ++s) m.dkk.at(r)[s] = m.dqk.at(r)[s] = 0;
            }
            for (int64_t g = 0; g < p.group; ++g) value_head_backward(chunk, g, b);
            if (p.corrects) {
                multiply(m.dkk, m.k, m.dk, rows, p.Dk, rows, true);
                multiply_transposed(m.dkk, m.k, m.dk, rows, p.Dk, rows, true);
            }
            multiply(m.dqk, m.k, m.dq, rows, p.Dk, rows, true);
            multiply_transposed(m.dqk, m.q, m.dk, rows, p.Dk, rows, true);
            for (int64_t r = 0; r < rows; ++r) {
                const int64_t t = chunk * kChunk + r;
                if (partials == nullptr) {
                    store_key_gradients(t, r, m.dk.at(r), m.dq.at(r), b);
                } else {
                    load_row(m.dk.at(r), p.row_k, partial(t));
                    load_row(m.dq.at(r), p.row_k, partial(t) + p.row_k);
                }
            }
        }
        store_states(m.dstates, b.dbefore);
    }
};

// run(task) for parts [0, parts) of the key heads.
template <class Run>
void for_key_heads(const Stream& stream, const DeltaRule& f, const Plan& p, int64_t parts, bool backward, Run&& run) {
    float *slots = f.workspace.as<float>(), *partials = p.partials > 0 ? slots + stream.threads * p.slot : nullptr;
    with_type(f.key.dtype, [&]<class T>(Type<T>) {
        tasks_in_slots(stream, p.B * p.Hk * parts, [&](int64_t task, int64_t slot) {
            Slot m(p, slots + slot * p.slot, backward);
            const int64_t key_head = task / parts, part = task % parts;
            float* own = partials ? partials + (key_head * p.parts + part) * p.T * 2 * p.row_k : nullptr;
            run(Task<T>{f, p, m, key_head / p.Hk, key_head % p.Hk, part, own});
        });
    });
}

void forward(const Stream& stream, const DeltaRule& f, View o, View after) {
    const Plan p = delta::plan_of(f.key.shape, f.value.shape, f.corrects, false);
    for_key_heads(stream, f, p, p.parts, false, [&](const auto& task) { task.forward(o, after); });
}

void backward(const Stream& stream, const DeltaRule& f, const DeltaRuleBackward& b) {
    const Plan p = delta::plan_of(f.key.shape, f.value.shape, f.corrects, true);
    for_key_heads(stream, f, p, p.parts, true, [&](const auto& task) { task.backward(b); });
    if (p.parts > 1)
        for_key_heads(stream, f, p, 1, true, [&](const auto& task) {
            for (int64_t t = 0; t < p.T; ++t) task.add_parts(t, b);
        });
}

// A task is a value head.
void backward_skip(const Stream& stream, View dout, View value, View dskip) {
    with_type(value.dtype, [&]<class T>(Type<T>) {
        tasks_in_slots(stream, size(value, 2), [&](int64_t h, int64_t) {
            float sum = 0;
            for (int64_t n = 0; n < size(value, 0); ++n)
                for (int64_t t = 0; t < size(value, 1); ++t) {
                    const T *d = row_at<const T>(dout, n, t, h), *v = row_at<const T>(value, n, t, h);
                    sum += row_sum(size(value, 3), [&](int64_t i, auto part) {
                        const Vec x = load(v + i, part);
                        return load(d + i, part) * (x * sigmoid<float>(x).value);
                    });
                }
            dskip.as<float>()[h] += sum;
        });
    });
}

}  // namespace

void fill_delta_rule(KernelTable& table) {
    table.delta_rule_forward = forward;
    table.delta_rule_backward = backward;
    table.delta_rule_backward_skip = backward_skip;
}

}  // namespace tutti::kernels::TUTTI_ISA
