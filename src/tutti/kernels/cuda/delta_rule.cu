// kernels/cuda/delta_rule.cu: the gated delta rule by chunks, and its decay; formulas as in kernels/kernel_table.h, and
// of a chunk as in kernels/cpu/isa/delta_rule.cpp. A block takes a key head of a sequence with its value heads, or a
// part of them, chunk after chunk; tiles and states are in the workspace, which the caches hold. Products are plain
// loops in f32: a thread computes some elements of the result, neighbours in a row.
#include "tutti/kernels/cuda/column_sums.h"
#include "tutti/kernels/cuda/element.h"
#include "tutti/kernels/cuda/fill.h"
#include "tutti/kernels/cuda/sizes.h"
#include "tutti/kernels/cuda/team.h"

namespace tutti::kernels::cuda {

namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp, kChunk = DeltaRuleSizes::kChunk;

__device__ __forceinline__ float sigmoid_of(float x) { return 1 / (1 + expf(-x)); }
__device__ __forceinline__ float silu_slope(float x) {
    const float s = sigmoid_of(x);
    return s * (1 + x * (1 - s));
}

// A view (B, T, H, D).
template <class T>
struct Heads4 {
    T* data;
    int64_t sequence, token, head;
    __device__ T* at(int64_t n, int64_t t, int64_t h) const { return data + n * sequence + t * token + h * head; }
};
template <class T>
Heads4<T> heads4(const View& x) {
    return {x.as<T>(), x.stride(0), x.stride(1), x.stride(2)};
}

template <class T>
struct Problem {
    DeltaRuleSizes size;
    Heads4<const T> query, key, value;
    const float* g;
    const T* b;
    const float* steps;  // b of the scan
    const T* skip;
    const int32_t* positions;
    int64_t positions_stride;
    const float* before;
    float* workspace;
};
template <class T>
struct Gradients {
    Heads4<const T> dout;
    Heads4<T> dquery, dkey, dvalue;
    const float* after;
    float *dg, *dbefore;
    T* db;
    float* dsteps;    // db of the scan
    float* partials;  // behind the slots; null: one part
};

// A matrix, or its transpose.
struct Matrix {
    float* data;
    int row, column;  // strides
    __device__ float& at(int i, int j) const { return data[i * row + j * column]; }
    __device__ Matrix transposed() const { return {data, column, row}; }
};

// body(i) for [0, n), on all threads of the block, which have all finished when it returns.
template <class Body>
__device__ __forceinline__ void for_all(int n, Body&& body) {
    for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads) body(i);
    __syncthreads();
}
// body(row, lane) for the rows [0, n), a warp each.
template <class Body>
__device__ __forceinline__ void for_rows(int n, Body&& body) {
    for (int row = static_cast<int>(threadIdx.x) / kWarp; row < n; row += kWarps)
        body(row, static_cast<int>(threadIdx.x) % kWarp);
    __syncthreads();
}
// sum of value(i) over [0, n), on a warp.
template <class Value>
__device__ __forceinline__ float warp_total(int n, int lane, Value&& value) {
    float sum = 0;
    for (int i = lane; i < n; i += kWarp) sum += value(i);
    return warp_sum(sum);
}
// c (M, N) [+]= a (M, K) b (K, N)
__device__ void multiply(Matrix a, Matrix b, Matrix c, int M, int N, int K, bool add) {
    for_all(M * N, [&](int at) {
        const int i = at / N, j = at % N;
        float sum = add ? c.at(i, j) : 0;
        for (int k = 0; k < K; ++k) sum = fmaf(a.at(i, k), b.at(k, j), sum);
        c.at(i, j) = sum;
    });
}

// What a block has in the workspace: tiles of the names of kernels/cpu/isa/delta_rule.cpp.
struct Slot {
    Matrix k, q, weighted, kk, qk, decay, lower, scores, v, p, d, o;
    float *alpha, *gamma, *beta, *scale_k, *scale_q, *dbeta, *e, *along, *of_gamma, *states;
    Matrix dk, dq, dstate_k, dout, dd, dp, dkk, dqk, dl, ds;
    float *dstates, *all;

    __device__ Slot(const DeltaRuleSizes& size, float* memory, bool backward) {
        const int Dk = static_cast<int>(size.Dk), Dv = static_cast<int>(size.Dv);
        const auto take = [&](int64_t n) {
            float* taken = memory;
            memory += n;
            return taken;
        };
        const auto tile = [&](int columns) { return Matrix{take(int64_t{kChunk} * columns), columns, 1}; };
        k = tile(Dk), q = tile(Dk), weighted = tile(Dk);
        kk = tile(kChunk), qk = tile(kChunk), decay = tile(kChunk), lower = tile(kChunk), scores = tile(kChunk);
        v = tile(Dv), p = tile(Dv), d = tile(Dv), o = tile(Dv);
        for (float** vector : {&alpha, &gamma, &beta, &scale_k, &scale_q, &dbeta, &e, &along, &of_gamma})
            *vector = take(kChunk);
        states = take(size.group * size.Dk * size.Dv);
        if (!backward) return;
        dk = tile(Dk), dq = tile(Dk), dstate_k = tile(Dk);
        dout = tile(Dv), dd = tile(Dv), dp = tile(Dv);
        dkk = tile(kChunk), dqk = tile(kChunk), dl = tile(kChunk), ds = tile(kChunk);
        dstates = take(size.group * size.Dk * size.Dv);
        all = take(size.chunks * size.group * size.Dk * size.Dv);
    }
};

// The work of a block. kCorrects: DeltaRule::corrects.
template <class T, bool kCorrects>
struct Task {
    const Problem<T>& f;
    Slot m;
    int64_t n, h, first_head;  // sequence, key head, the first of its value heads
    int Dk, Dv, group;

    __device__ Task(const Problem<T>& problem, bool backward)
        : f(problem),
          m(problem.size, problem.workspace + blockIdx.x * problem.size.slot, backward),
          n(key_head(problem) / problem.size.Hk),
          h(key_head(problem) % problem.size.Hk),
          first_head(kCorrects ? h * problem.size.group
                               : h * problem.size.heads + blockIdx.x % problem.size.parts * problem.size.group),
          Dk(static_cast<int>(problem.size.Dk)),
          Dv(static_cast<int>(problem.size.Dv)),
          group(static_cast<int>(problem.size.group)) {}

    // Of all sequences; the rule has one part.
    __device__ static int64_t key_head(const Problem<T>& problem) {
        return kCorrects ? blockIdx.x : blockIdx.x / problem.size.parts;
    }
    __device__ static constexpr bool corrects() { return kCorrects; }
    __device__ int64_t value_head(int g) const { return first_head + g; }
    __device__ int64_t states_size() const { return int64_t{group} * Dk * Dv; }
    __device__ Matrix state(float* all, int g) const { return {all + int64_t{g} * Dk * Dv, Dv, 1}; }
    __device__ int rows_of(int64_t chunk) const {
        const int64_t left = f.size.T - chunk * kChunk;
        return static_cast<int>(left < kChunk ? left : kChunk);
    }
    __device__ int64_t index(int64_t t, int g) const { return (n * f.size.T + t) * f.size.Hv + value_head(g); }
    __device__ int64_t states_begin() const { return (n * f.size.Hv + value_head(0)) * Dk * Dv; }
    __device__ void copy_states(const float* from, float* to) const {
        for_all(static_cast<int>(states_size()), [&](int i) { to[i] = from ? from[i] : 0; });
    }

    __device__ void load_unit(const T* x, float scale, int row, int lane, Matrix to, float* factors) const {
        float factor = 1;
        if (corrects()) {
            const float squares = warp_total(Dk, lane, [&](int i) {
                const float v = load_one(x + i), s = v * sigmoid_of(v);
                return s * s;
            });
            factor = scale / sqrtf(squares + kUnitEpsilon);
        }
        for (int i = lane; i < Dk; i += kWarp) {
            const float v = load_one(x + i);
            to.at(row, i) = factor * v * sigmoid_of(v);
        }
        if (lane == 0) factors[row] = factor;
    }

    // k, q, kk and qk of a chunk.
    __device__ void load_keys(int64_t chunk) const {
        const int rows = rows_of(chunk);
        for_rows(rows, [&](int row, int lane) {
            const int64_t t = chunk * kChunk + row;
            load_unit(f.key.at(n, t, h), 1, row, lane, m.k, m.scale_k);
            load_unit(f.query.at(n, t, h), rsqrtf(static_cast<float>(Dk)), row, lane, m.q, m.scale_q);
        });
        if (corrects()) multiply(m.k, m.k.transposed(), m.kk, rows, rows, Dk, false);
        multiply(m.q, m.k.transposed(), m.qk, rows, rows, Dk, false);
    }

    // lower, p, v and d; `S` is the state before the chunk.
    __device__ void solve(int64_t chunk, int g, Matrix S) const {
        const int rows = rows_of(chunk);
        const int64_t begin = chunk * kChunk;
        for_all(rows, [&](int r) {
            const bool first = f.positions[n * f.positions_stride + begin + r] == 0;
            m.alpha[r] = first ? 0 : expf(f.g[index(begin + r, g)]);
            m.beta[r] = corrects() ? sigmoid_of(load_one(f.b + index(begin + r, g))) : f.steps[index(begin + r, g)];
        });
        for_all(rows, [&](int s) {  // a column of decay
            float product = 1;
            for (int t = 0; t < rows; ++t) {
                if (t > s) product *= m.alpha[t];
                m.decay.at(t, s) = t < s ? 0 : product;
            }
            if (s > 0) return;
            for (int t = 0; t < rows; ++t) m.gamma[t] = m.decay.at(t, 0) * m.alpha[0];
        });
        if (corrects()) {
            for_all(rows * rows, [&](int at) {
                const int t = at / rows, s = at % rows;
                m.lower.at(t, s) = s < t ? -m.beta[t] * m.kk.at(t, s) * m.decay.at(t, s) : 0;
            });
            multiply(m.k, S, m.p, rows, Dv, Dk, false);
        }
        for_all(rows * Dv, [&](int at) {
            const int r = at / Dv, c = at % Dv;
            const float x = load_one(f.value.at(n, begin + r, value_head(g)) + c), v = x * sigmoid_of(x);
            m.v.at(r, c) = v;
            m.d.at(r, c) = m.beta[r] * (corrects() ? v - m.gamma[r] * m.p.at(r, c) : v);
        });
        if (!corrects()) return;
        for_all(Dv, [&](int c) {
            for (int t = 1; t < rows; ++t) {
                float sum = m.d.at(t, c);
                for (int s = 0; s < t; ++s) sum = fmaf(m.lower.at(t, s), m.d.at(s, c), sum);
                m.d.at(t, c) = sum;
            }
        });
    }

    __device__ void weigh(int rows) const {
        for_all(rows * Dk, [&](int at) {
            const int s = at / Dk, i = at % Dk;
            m.weighted.at(s, i) = m.decay.at(rows - 1, s) * m.k.at(s, i);
        });
    }
    // S becomes the state after the chunk.
    __device__ void advance(int rows, Matrix S) const {
        weigh(rows);
        for_all(Dk * Dv, [&](int at) { S.data[at] *= m.gamma[rows - 1]; });
        multiply(m.weighted.transposed(), m.d, S, Dk, Dv, rows, true);
    }
    // scores, and Q S in o.
    __device__ void score(int rows, Matrix S) const {
        for_all(rows * rows, [&](int at) {
            const int t = at / rows, s = at % rows;
            m.scores.at(t, s) = s > t ? 0 : m.qk.at(t, s) * m.decay.at(t, s);
        });
        multiply(m.q, S, m.o, rows, Dv, Dk, false);
    }

    __device__ float skip(int g) const { return f.skip ? load_one(f.skip + value_head(g)) : 0; }

    __device__ void forward(Heads4<T> o, float* after) const {
        copy_states(f.before ? f.before + states_begin() : nullptr, m.states);
        for (int64_t chunk = 0; chunk < f.size.chunks; ++chunk) {
            const int rows = rows_of(chunk);
            load_keys(chunk);
            for (int g = 0; g < group; ++g) {
                const Matrix S = state(m.states, g);
                solve(chunk, g, S);
                score(rows, S);
                for_all(rows * Dv, [&](int at) { m.o.data[at] *= m.gamma[at / Dv]; });
                multiply(m.scores, m.d, m.o, rows, Dv, rows, true);
                for_all(rows * Dv, [&](int at) {
                    const int r = at / Dv;
                    if (!corrects()) m.o.data[at] += skip(g) * m.v.data[at];
                    store_one(m.o.data[at], o.at(n, chunk * kChunk + r, value_head(g)) + at % Dv);
                });
                advance(rows, S);
            }
        }
        if (after != nullptr) copy_states(m.states, after + states_begin());
    }

    // --- backward ---

    // The states before all chunks.
    __device__ void remember() const {
        copy_states(f.before ? f.before + states_begin() : nullptr, m.all);
        for (int64_t chunk = 0; chunk + 1 < f.size.chunks; ++chunk) {
            float *from = m.all + chunk * states_size(), *to = from + states_size();
            copy_states(from, to);
            load_keys(chunk);
            for (int g = 0; g < group; ++g) {
                solve(chunk, g, state(to, g));
                advance(rows_of(chunk), state(to, g));
            }
        }
    }

    // dd becomes (I + L)^-T dd.
    __device__ void solve_transposed(int rows) const {
        for_all(Dv, [&](int c) {
            for (int t = rows - 2; t >= 0; --t) {
                float sum = m.dd.at(t, c);
                for (int s = t + 1; s < rows; ++s) sum = fmaf(m.lower.at(s, t), m.dd.at(s, c), sum);
                m.dd.at(t, c) = sum;
            }
        });
    }

    // dbeta and e from the products of rows, and the gradients of the squares L and scores: adds to dkk and dqk.
    __device__ void squares_backward(int rows) const {
        if (corrects()) multiply(m.dd, m.d.transposed(), m.dl, rows, rows, Dv, false);
        multiply(m.dout, m.d.transposed(), m.ds, rows, rows, Dv, false);
        for_all(rows * rows, [&](int at) {
            const int t = at / rows, s = at % rows;
            const float decay = m.decay.at(t, s), of_scores = m.ds.at(t, s) * decay;
            const float of_lower = corrects() ? -m.dl.at(t, s) * decay : 0, kk = corrects() ? m.kk.at(t, s) : 0;
            if (s <= t) m.dqk.at(t, s) += of_scores;
            if (s < t) m.dkk.at(t, s) += of_lower * m.beta[t];
            m.dl.at(t, s) = s < t ? of_lower * kk : 0;
            m.ds.at(t, s) = s < t ? of_lower * m.beta[t] * kk + of_scores * m.qk.at(t, s) : 0;
        });
        for_all(rows, [&](int r) {  // sums over s of a row: kernels/cpu/isa/delta_rule.cpp says why
            float before = 0;
            for (int s = 0; s < r; ++s) m.ds.at(r, s) = before += m.ds.at(r, s);
        });
        for_rows(rows, [&](int t, int lane) {
            const float of_p =
                corrects() ? warp_total(Dv, lane, [&](int c) { return m.dd.at(t, c) * m.p.at(t, c); }) : 0;
            const float of_v = warp_total(Dv, lane, [&](int c) { return m.dd.at(t, c) * m.v.at(t, c); });
            const float of_o = warp_total(Dv, lane, [&](int c) { return m.dout.at(t, c) * m.o.at(t, c); });
            const float of_l = warp_total(rows, lane, [&](int s) { return m.dl.at(t, s); });
            const float spanning =
                warp_total(t == 0 ? 0 : rows - t, lane, [&](int r) { return m.ds.at(t + r, t - 1); });
            if (lane > 0) return;
            m.dbeta[t] = of_v - m.gamma[t] * of_p + of_l;
            m.e[t] = spanning;
            m.of_gamma[t] = m.gamma[t] * (of_o - m.beta[t] * of_p);
        });
    }

    // From the gradient dS of the state after the chunk to that of S, the state before it: adds to dk, dq and e.
    __device__ void state_backward(int rows, Matrix S, Matrix dS) const {
        multiply(m.d, dS.transposed(), m.dstate_k, rows, Dk, Dv, false);
        for_rows(rows, [&](int s, int lane) {
            const float decay = m.decay.at(rows - 1, s);
            const float sum = warp_total(Dk, lane, [&](int i) { return m.k.at(s, i) * m.dstate_k.at(s, i); });
            for (int i = lane; i < Dk; i += kWarp) m.dk.at(s, i) += decay * m.dstate_k.at(s, i);
            if (lane == 0) m.along[s] = decay * sum;
        });
        float product = 0;
        for (int i = static_cast<int>(threadIdx.x); i < Dk * Dv; i += kThreads) product += S.data[i] * dS.data[i];
        product = Team<kWarps>::sum(product);
        const float last = m.gamma[rows - 1];
        for_all(rows, [&](int t) {
            float sum = last * product;
            for (int r = rows - 1; r >= t; --r) sum += m.of_gamma[r];
            for (int s = 0; s < t; ++s) sum += m.along[s];
            m.e[t] += sum;
        });
        for_all(rows * Dv, [&](int at) {
            const int t = at / Dv;
            if (corrects()) m.dp.data[at] = -m.beta[t] * m.gamma[t] * m.dd.data[at];
            m.dout.data[at] *= m.gamma[t];
        });
        if (corrects()) multiply(m.dp, S.transposed(), m.dk, rows, Dk, Dv, true);
        multiply(m.dout, S.transposed(), m.dq, rows, Dk, Dv, true);
        for_all(Dk * Dv, [&](int at) { dS.data[at] *= last; });
        if (corrects()) multiply(m.k.transposed(), m.dp, dS, Dk, Dv, rows, true);
        multiply(m.q.transposed(), m.dout, dS, Dk, Dv, rows, true);
    }

    __device__ void value_head_backward(int64_t chunk, int g, const Gradients<T>& b) const {
        const int rows = rows_of(chunk);
        const int64_t begin = chunk * kChunk;
        const Matrix S = state(m.all + chunk * states_size(), g), dS = state(m.dstates, g);
        solve(chunk, g, S);
        score(rows, S);
        weigh(rows);
        for_all(rows * Dv,
                [&](int at) { m.dout.data[at] = load_one(b.dout.at(n, begin + at / Dv, value_head(g)) + at % Dv); });
        multiply(m.scores.transposed(), m.dout, m.dd, rows, Dv, rows, false);
        multiply(m.weighted, dS, m.dd, rows, Dv, Dk, true);
        if (corrects()) solve_transposed(rows);
        squares_backward(rows);
        state_backward(rows, S, dS);
        for_all(rows, [&](int r) {
            b.dg[index(begin + r, g)] = m.e[r];
            if (corrects())
                store_one(m.dbeta[r] * m.beta[r] * (1 - m.beta[r]), b.db + index(begin + r, g));
            else
                b.dsteps[index(begin + r, g)] = m.dbeta[r];
        });
        for_all(rows * Dv, [&](int at) {
            const int r = at / Dv, c = at % Dv;
            const float x = load_one(f.value.at(n, begin + r, value_head(g)) + c);
            float d = m.beta[r] * m.dd.data[at];
            if (!corrects()) d += skip(g) * load_one(b.dout.at(n, begin + r, value_head(g)) + c);
            store_one(d * silu_slope(x), b.dvalue.at(n, begin + r, value_head(g)) + c);
        });
    }

    // The gradient of x from `d`, that of y = factor silu(x) = scale unit(silu(x)).
    __device__ void store_unit_gradient(const T* x, Matrix y, Matrix d, float factor, float scale, int row, int lane,
                                        T* dx) const {
        float along = 0;
        if (corrects())
            along = warp_total(Dk, lane, [&](int i) { return d.at(row, i) * y.at(row, i); }) / (scale * scale);
        for (int i = lane; i < Dk; i += kWarp)
            store_one(factor * (d.at(row, i) - along * y.at(row, i)) * silu_slope(load_one(x + i)), dx + i);
    }

    __device__ void backward(const Gradients<T>& b) const {
        remember();
        copy_states(b.after ? b.after + states_begin() : nullptr, m.dstates);
        for (int64_t chunk = f.size.chunks - 1; chunk >= 0; --chunk) {
            const int rows = rows_of(chunk);
            load_keys(chunk);
            for_all(rows * Dk, [&](int at) { m.dk.data[at] = m.dq.data[at] = 0; });
            for_all(rows * kChunk, [&](int at) { m.dkk.data[at] = m.dqk.data[at] = 0; });
            for (int g = 0; g < group; ++g) value_head_backward(chunk, g, b);
            if (corrects()) {
                multiply(m.dkk, m.k, m.dk, rows, Dk, rows, true);
                multiply(m.dkk.transposed(), m.k, m.dk, rows, Dk, rows, true);
            }
            multiply(m.dqk, m.k, m.dq, rows, Dk, rows, true);
            multiply(m.dqk.transposed(), m.q, m.dk, rows, Dk, rows, true);
            if (b.partials != nullptr) {
                float* to = b.partials + (int64_t{blockIdx.x} * f.size.T + chunk * kChunk) * 2 * Dk;
                for_all(rows * Dk, [&](int at) {
                    const int r = at / Dk, i = at % Dk;
                    to[(2 * r) * Dk + i] = m.dk.data[at];
                    to[(2 * r + 1) * Dk + i] = m.dq.data[at];
                });
                continue;
            }
            for_rows(rows, [&](int r, int lane) {
                const int64_t t = chunk * kChunk + r;
                store_unit_gradient(f.key.at(n, t, h), m.k, m.dk, m.scale_k[r], 1, r, lane, b.dkey.at(n, t, h));
                store_unit_gradient(f.query.at(n, t, h), m.q, m.dq, m.scale_q[r], rsqrtf(static_cast<float>(Dk)), r,
                                    lane, b.dquery.at(n, t, h));
            });
        }
        if (b.dbefore != nullptr) copy_states(m.dstates, b.dbefore + states_begin());
    }
};

template <class T, bool kCorrects>
__global__ void __launch_bounds__(kThreads) delta_rule_kernel(Problem<T> f, Heads4<T> o, float* after) {
    Task<T, kCorrects>(f, false).forward(o, after);
}
template <class T, bool kCorrects>
__global__ void __launch_bounds__(kThreads) delta_rule_backward_kernel(Problem<T> f, Gradients<T> b) {
    Task<T, kCorrects>(f, true).backward(b);
}

// The gradients of keys and queries of the scan from those of each part: a thread takes an element of both.
template <class T>
__global__ void __launch_bounds__(kThreads) add_parts_kernel(Problem<T> f, Gradients<T> b) {
    const DeltaRuleSizes& s = f.size;
    const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (at >= s.B * s.T * s.Hk * s.Dk) return;
    const int64_t i = at % s.Dk, h = at / s.Dk % s.Hk, t = at / s.Dk / s.Hk % s.T, n = at / s.Dk / s.Hk / s.T;
    float dk = 0, dq = 0;
    for (int64_t part = 0; part < s.parts; ++part) {
        const float* from = b.partials + (((n * s.Hk + h) * s.parts + part) * s.T + t) * 2 * s.Dk + i;
        dk += from[0];
        dq += from[s.Dk];
    }
    store_one(dk * silu_slope(load_one(f.key.at(n, t, h) + i)), b.dkey.at(n, t, h) + i);
    store_one(dq * silu_slope(load_one(f.query.at(n, t, h) + i)), b.dquery.at(n, t, h) + i);
}

template <class T>
Problem<T> problem_of(const DeltaRule& f, bool backward) {
    return {.size = DeltaRuleSizes(f.key.shape, f.value.shape, f.corrects, backward),
            .query = heads4<const T>(f.query),
            .key = heads4<const T>(f.key),
            .value = heads4<const T>(f.value),
            .g = f.g.as<const float>(),
            .b = f.corrects ? f.b.as<const T>() : nullptr,
            .steps = f.corrects ? nullptr : f.b.as<const float>(),
            .skip = f.skip.as<const T>(),
            .positions = f.positions.as<const int32_t>(),
            .positions_stride = f.positions.stride(0),
            .before = f.before.as<const float>(),
            .workspace = f.workspace.as<float>()};
}
Grid grid_of(const DeltaRuleSizes& s) {
    return {.blocks = dim3(static_cast<unsigned>(s.blocks())), .threads = dim3(kThreads)};
}

void forward(const Stream& stream, const DeltaRule& f, View o, View after) {
    if (f.key.shape[0] * f.key.shape[2] == 0) return;
    with_type(f.key.dtype, [&]<class T>(T) {
        const Problem<T> p = problem_of<T>(f, false);
        launch(f.corrects ? delta_rule_kernel<T, true> : delta_rule_kernel<T, false>, grid_of(p.size), stream, p,
               heads4<T>(o), after.as<float>());
    });
}

void backward(const Stream& stream, const DeltaRule& f, const DeltaRuleBackward& b) {
    if (f.key.shape[0] * f.key.shape[2] == 0) return;
    with_type(f.key.dtype, [&]<class T>(T) {
        const Problem<T> p = problem_of<T>(f, true);
        const Gradients<T> to{.dout = heads4<const T>(b.dout),
                              .dquery = heads4<T>(b.dquery),
                              .dkey = heads4<T>(b.dkey),
                              .dvalue = heads4<T>(b.dvalue),
                              .after = b.after.as<const float>(),
                              .dg = b.dg.as<float>(),
                              .dbefore = b.dbefore.as<float>(),
                              .db = f.corrects ? b.db.as<T>() : nullptr,
                              .dsteps = f.corrects ? nullptr : b.db.as<float>(),
                              .partials = p.size.parts > 1 ? p.workspace + p.size.blocks() * p.size.slot : nullptr};
        launch(f.corrects ? delta_rule_backward_kernel<T, true> : delta_rule_backward_kernel<T, false>, grid_of(p.size),
               stream, p, to);
        if (p.size.parts > 1) launch(add_parts_kernel<T>, grid_of_tasks(f.key.numel(), kThreads), stream, p, to);
    });
}

// The terms of dskip of a token: a column is a value head.
template <class T>
struct SkipTerms {
    Heads4<const T> dout, value;
    int64_t tokens, width;
    template <int N>
    __device__ void operator()(int64_t row, int64_t head, float (&out)[1][N]) const {
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const T *d = dout.at(row / tokens, row % tokens, head + k),
                    *v = value.at(row / tokens, row % tokens, head + k);
            out[0][k] = 0;
            for (int64_t i = 0; i < width; ++i) {
                const float x = load_one(v + i);
                out[0][k] = fmaf(load_one(d + i), x * sigmoid_of(x), out[0][k]);
            }
        }
    }
};

void backward_skip(const Stream& stream, View dout, View value, View dskip) {
    with_type(value.dtype, [&]<class T>(T) {
        const SkipTerms<T> terms{heads4<const T>(dout), heads4<const T>(value), value.shape[1], value.shape[3]};
        column_sums<1, 1>(stream, value.shape[0] * value.shape[1], value.shape[2], terms, {.first = dskip.as<float>()});
    });
}

// --- decay: a thread for each value of g ---

template <class T>
struct Steps {
    const T *x, *a_log, *dt_bias;
    int64_t heads;
    StepRange range;
    const float *dg, *ddt;  // of the backward; ddt null: none
    __device__ float rate(int64_t i) const { return -expf(load_one(a_log + i % heads)); }
    __device__ float shifted(int64_t i) const { return load_one(x + i) + load_one(dt_bias + i % heads); }
    __device__ float uncut(int64_t i) const {
        const float z = shifted(i);
        return z > 0 ? z + log1pf(expf(-z)) : log1pf(expf(z));
    }
    __device__ float step(int64_t i) const {
        const float dt = uncut(i);
        return dt < range.least ? range.least : dt > range.most ? range.most : dt;
    }
    // The gradient of x.
    __device__ float gradient(int64_t i) const {
        const float dt = uncut(i);
        if (dt < range.least || dt > range.most) return 0;
        return fmaf(dg[i], rate(i), ddt ? ddt[i] : 0) * sigmoid_of(shifted(i));
    }
};
template <class T>
Steps<T> steps_of(const Decay& f, const View& dg = {}, const View& ddt = {}) {
    return {f.x.as<const T>(), f.a_log.as<const T>(), f.dt_bias.as<const T>(), f.a_log.numel(),
            f.range,           dg.as<const float>(),  ddt.as<const float>()};
}

template <class T>
__global__ void __launch_bounds__(kThreads) decay_kernel(int64_t n, Steps<T> of, float* g, float* dt) {
    const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (i >= n) return;
    const float step = of.step(i);
    g[i] = of.rate(i) * step;
    if (dt != nullptr) dt[i] = step;
}
template <class T>
__global__ void __launch_bounds__(kThreads) decay_backward_kernel(int64_t n, Steps<T> of, T* dx) {
    const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (i < n) store_one(of.gradient(i), dx + i);
}

void decay_forward(const Stream& stream, const Decay& f, View g, View dt) {
    const int64_t n = f.x.numel();
    if (n == 0) return;
    with_type(f.x.dtype, [&]<class T>(T) {
        launch(decay_kernel<T>, grid_of_tasks(n, kThreads), stream, n, steps_of<T>(f), g.as<float>(), dt.as<float>());
    });
}

void decay_backward_input(const Stream& stream, const Decay& f, View dg, View ddt, View dx) {
    const int64_t n = f.x.numel();
    if (n == 0) return;
    with_type(f.x.dtype, [&]<class T>(T) {
        launch(decay_backward_kernel<T>, grid_of_tasks(n, kThreads), stream, n, steps_of<T>(f, dg, ddt), dx.as<T>());
    });
}

// The terms of da_log and ddt_bias.
template <class T>
struct DecayTerms {
    Steps<T> of;
    template <int N>
    __device__ void operator()(int64_t row, int64_t head, float (&out)[2][N]) const {
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const int64_t i = row * of.heads + head + k;
            out[0][k] = of.dg[i] * of.rate(i) * of.step(i);
            out[1][k] = of.gradient(i);
        }
    }
};

void decay_backward_weight(const Stream& stream, const Decay& f, View dg, View ddt, View da_log, View ddt_bias) {
    with_type(f.x.dtype, [&]<class T>(T) {
        const int64_t heads = f.a_log.numel();
        const DecayTerms<T> terms{steps_of<T>(f, dg, ddt)};
        column_sums<2, 1>(stream, heads == 0 ? 0 : f.x.numel() / heads, heads, terms,
                          {.first = da_log.as<float>(), .second = ddt_bias.as<float>()});
    });
}

}  // namespace

void fill_delta_rule(KernelTable& table) {
    table.decay_forward = decay_forward;
    table.decay_backward_input = decay_backward_input;
    table.decay_backward_weight = decay_backward_weight;
    table.delta_rule_forward = forward;
    table.delta_rule_backward = backward;
    table.delta_rule_backward_skip = backward_skip;
    table.delta_rule_workspace = delta_rule_workspace;
}

}  // namespace tutti::kernels::cuda
