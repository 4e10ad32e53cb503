// kernels/cpu/isa/short_convolution.cpp: the gated short convolution of LFM2, one pass over memory in each direction.
// u is recomputed for each tap from b and x of the K rows around a token: those rows are in a cache, since neighbouring
// rows have just been read, and rows stay independent.
#include "tutti/kernels/cpu/isa/column_sums.h"
#include "tutti/kernels/cpu/isa/loops.h"
#include "tutti/kernels/cpu/isa/parts.h"

namespace tutti::kernels::TUTTI_ISA {
namespace {

// Values of w that are transposed at a time. A strip of channels should cover whole rows where possible: rows in pieces
// of 512 channels took twice as long from memory.
constexpr int64_t kStripValues = 12288;

// Row t of sequence n of a view (B, T, C).
template <class T>
[[gnu::always_inline]] inline T* row_of(const View& x, int64_t n, int64_t t) {
    return x.as<T>() + n * stride(x, 0) + t * stride(x, 1);
}

// w of some channels, transposed.
struct Strip {
    int64_t begin, width;
    alignas(64) float values[kStripValues];
    const float* tap(int64_t j) const { return values + j * width; }
};

template <class T>
void fill_strip(const View& w, int64_t begin, Strip& strip) {
    const int64_t taps = size(w, 1);
    strip.begin = begin;
    strip.width = smaller(kStripValues / taps, size(w, 0) - begin);
    for (int64_t c = 0; c < strip.width; ++c)
        for (int64_t j = 0; j < taps; ++j) {
            const T* value = w.as<T>() + (begin + c) * taps + j;
            strip.values[j * strip.width + c] = value_of(*value);
        }
}

// Some values of token t of sequence n, times those of a gate, b or c; without gates (`gate` undefined) as they are.
template <bool gates, class T>
[[gnu::always_inline]] inline Vec times_gate(Vec x, const View& gate, int64_t n, int64_t t, int64_t c, auto part) {
    if constexpr (gates)
        return x * load(row_of<const T>(gate, n, t) + c, part);
    else
        return x;
}

// The tokens that token t of sequence n sees: `lags` before it, of which `inside` belong to this call.
struct Reach {
    int64_t lags, inside;
};
[[gnu::always_inline]] inline Reach reach_of(const ShortConvolution& f, int64_t n, int64_t t, int64_t taps) {
    const int64_t position = index_at(f.positions, n * stride(f.positions, 0) + t);
    const int64_t here = smaller(taps - 1, t), all = f.before.data ? taps - 1 : here;
    return {smaller(all, position), smaller(here, position)};
}

// v of one token and channels c of the strip: the oldest term first. K: the taps, or 0 where they are known at run
// time.
template <int K, bool gates, class T>
[[gnu::always_inline]] inline Vec convolved(const ShortConvolution& f, const Strip& strip, int64_t n, int64_t t,
                                            Reach reach, int64_t c, auto part) {
    const int64_t taps = K > 0 ? K : size(f.w, 1), at = strip.begin + c, step = stride(f.x, 1);
    const T* x = row_of<const T>(f.x, n, t) + at;
    Vec v = zero();
    if (reach.lags > reach.inside) {
        const float* before = f.before.as<float>() + (n * (taps - 1) + taps - 1 + t) * size(f.w, 0) + at;
        for (int64_t lag = reach.lags; lag > reach.inside; --lag)
            v = fma(load(strip.tap(taps - 1 - lag) + c, part), load(before - lag * size(f.w, 0), part), v);
    }
    const auto add = [&](int64_t lag) __attribute__((always_inline)) {
        const Vec u = times_gate<gates, T>(load(x - lag * step, part), f.b, n, t - lag, at, part);
        v = fma(load(strip.tap(taps - 1 - lag) + c, part), u, v);
    };
    if (K > 0 && reach.inside == K - 1)
        for (int64_t lag = K - 1; lag >= 0; --lag) add(lag);
    else
        for (int64_t lag = reach.inside; lag >= 0; --lag) add(lag);
    return f.bias.data ? v + load(f.bias.as<T>() + at, part) : v;
}

// du of one token: `du` plus the terms of tokens first to last, the longest lag first.
template <bool gates, class T>
[[gnu::always_inline]] inline Vec gradient_of_gated(const ShortConvolution& f, const View& dz, const Strip& strip,
                                                    int64_t n, int64_t s, int64_t first, int64_t last, Vec du,
                                                    int64_t c, auto part) {
    const int64_t taps = size(f.w, 1), at = strip.begin + c;
    const int32_t* positions = f.positions.as<int32_t>() + n * stride(f.positions, 0);
    for (int64_t t = last; t >= first; --t) {
        const int64_t lag = t - s;
        if (lag > positions[t]) continue;
        const Vec dv = times_gate<gates, T>(load(row_of<const T>(dz, n, t) + at, part), f.c, n, t, at, part);
        du = fma(load(strip.tap(taps - 1 - lag) + c, part), dv, du);
    }
    return du;
}

// body(strip, first row, end row) of the rows [0, count), on the stream's threads.
template <class T, class Body>
void for_strips(const Stream& stream, const View& w, int64_t count, Body&& body) {
    parallel_for(stream, count, row_grain(size(w, 0)), [&](int64_t begin, int64_t end) {
        Strip strip;
        for (int64_t c = 0; c < size(w, 0); c += strip.width) {
            fill_strip<T>(w, c, strip);
            body(strip, begin, end);
        }
    });
}

template <int K, bool gates, class T>
void forward_row(const ShortConvolution& f, const View& z, const Strip& strip, int64_t n, int64_t t) {
    const Reach reach = reach_of(f, n, t, size(f.w, 1));
    T* out = row_of<T>(z, n, t) + strip.begin;
    for_vectors(
        0, strip.width, [&](int64_t c, auto part) __attribute__((always_inline)) {
            const Vec v = convolved<K, gates, T>(f, strip, n, t, reach, c, part);
            store(times_gate<gates, T>(v, f.c, n, t, strip.begin + c, part), out + c, part);
        });
}

template <int K, bool gates, class T>
void backward_row(const ShortConvolution& f, const ShortConvolutionBackward& g, const Strip& strip, int64_t n,
                  int64_t s) {
    const int64_t taps = size(f.w, 1), tokens = size(f.x, 1), last = smaller(s + taps - 1, tokens - 1);
    const int64_t row = s - tokens + taps - 1;  // of `after`
    const Reach reach = reach_of(f, n, s, taps);
    const T* x = row_of<const T>(f.x, n, s) + strip.begin;
    const T* dz = row_of<const T>(g.dz, n, s) + strip.begin;
    T* dx = row_of<T>(g.dx, n, s) + strip.begin;
    const float* after =
        g.after.data && row >= 0 ? g.after.as<float>() + (n * (taps - 1) + row) * size(f.w, 0) + strip.begin : nullptr;
    for_vectors(
        0, strip.width, [&](int64_t c, auto part) __attribute__((always_inline)) {
            const Vec later = after ? load(after + c, part) : zero();
            const Vec du = gradient_of_gated<gates, T>(f, g.dz, strip, n, s, s, last, later, c, part);
            if constexpr (gates) store(du * load(x + c, part), row_of<T>(g.db, n, s) + strip.begin + c, part);
            store(times_gate<gates, T>(du, f.b, n, s, strip.begin + c, part), dx + c, part);
            if constexpr (gates)
                store(load(dz + c, part) * convolved<K, gates, T>(f, strip, n, s, reach, c, part),
                      row_of<T>(g.dc, n, s) + strip.begin + c, part);
        });
}

template <bool gates, class T>
void before_row(const ShortConvolution& f, const View& dz, const View& dbefore, const Strip& strip, int64_t n,
                int64_t row) {
    const int64_t rows = size(dbefore, 1), last = smaller(row, size(f.x, 1) - 1);
    float* out = dbefore.as<float>() + (n * rows + row) * size(f.w, 0) + strip.begin;
    for_vectors(
        0, strip.width, [&](int64_t c, auto part) __attribute__((always_inline)) {
            store(gradient_of_gated<gates, T>(f, dz, strip, n, row - rows, 0, last, zero(), c, part), out + c, part);
        });
}

template <bool>
struct Gates {};
// body(Rows<K>, Gates<gates>) with the usual numbers of taps as constants, else K = 0: LFM2's and Qwen3-Next's.
template <class Body>
void with_taps(const ShortConvolution& f, Body&& body) {
    const int64_t taps = size(f.w, 1);
    if (f.b.data == nullptr) return taps == 4 ? body(Rows<4>{}, Gates<false>{}) : body(Rows<0>{}, Gates<false>{});
    if (taps == 3) return body(Rows<3>{}, Gates<true>{});
    if (taps == 4) return body(Rows<4>{}, Gates<true>{});
    body(Rows<0>{}, Gates<true>{});
}

void forward(const Stream& stream, const ShortConvolution& f, View z) {
    const int64_t tokens = size(f.x, 1);
    with_type(f.x.dtype, [&]<class T>(Type<T>) {
        with_taps(f, [&]<int K, bool gates>(Rows<K>, Gates<gates>) {
            for_strips<T>(stream, f.w, size(f.x, 0) * tokens, [&](const Strip& strip, int64_t begin, int64_t end) {
                for (int64_t i = begin; i < end; ++i) forward_row<K, gates, T>(f, z, strip, i / tokens, i % tokens);
            });
        });
    });
}

void backward_input(const Stream& stream, const ShortConvolution& f, const ShortConvolutionBackward& g) {
    const int64_t tokens = size(f.x, 1);
    with_type(f.x.dtype, [&]<class T>(Type<T>) {
        with_taps(f, [&]<int K, bool gates>(Rows<K>, Gates<gates>) {
            for_strips<T>(stream, f.w, size(f.x, 0) * tokens, [&](const Strip& strip, int64_t begin, int64_t end) {
                for (int64_t i = begin; i < end; ++i) backward_row<K, gates, T>(f, g, strip, i / tokens, i % tokens);
            });
        });
    });
}

void backward_before(const Stream& stream, const ShortConvolution& f, View dz, View dbefore) {
    const int64_t rows = size(dbefore, 1);
    with_type(f.x.dtype, [&]<class T>(Type<T>) {
        with_taps(f, [&]<int K, bool gates>(Rows<K>, Gates<gates>) {
            for_strips<T>(stream, f.w, size(dbefore, 0) * rows, [&](const Strip& strip, int64_t begin, int64_t end) {
                for (int64_t i = begin; i < end; ++i) before_row<gates, T>(f, dz, dbefore, strip, i / rows, i % rows);
            });
        });
    });
}

// dv of one token.
template <class T>
[[gnu::always_inline]] inline Vec gradient_of_convolved(const ShortConvolution& f, const View& dz, int64_t n, int64_t t,
                                                        int64_t c, auto part) {
    const Vec d = load(row_of<const T>(dz, n, t) + c, part);
    return f.c.data ? times_gate<true, T>(d, f.c, n, t, c, part) : d;
}
// b x of one token; without a gate x.
template <class T>
[[gnu::always_inline]] inline Vec gated(const View& b, const View& x, int64_t n, int64_t t, int64_t c, auto part) {
    const Vec u = load(row_of<const T>(x, n, t) + c, part);
    return b.data ? times_gate<true, T>(u, b, n, t, c, part) : u;
}

// The sums of taps [first, first + N) of one sequence.
template <int N, class T>
void add_taps(const Stream& stream, const ShortConvolution& f, const View& dz, const View& dw, int64_t n,
              int64_t first) {
    const int64_t taps = size(f.w, 1), width = size(f.w, 0);
    const int32_t* positions = f.positions.as<int32_t>() + n * stride(f.positions, 0);
    const float* before = f.before.data ? f.before.as<float>() + n * (taps - 1) * width : nullptr;
    Targets<N> targets;
    for (int k = 0; k < N; ++k) targets.p[k] = dw.as<float>() + first + k;
    targets.step = taps;
    add_column_sums<N>(stream, size(f.x, 1), width, targets, [=, &f, &dz](int64_t t, int64_t c, auto part) {
        const Vec dv = gradient_of_convolved<T>(f, dz, n, t, c, part);
        Vecs<N> terms;
        for (int k = 0; k < N; ++k) {
            const int64_t lag = taps - 1 - first - k;
            Vec u = zero();
            if (lag <= positions[t]) {
                if (lag <= t)
                    u = gated<T>(f.b, f.x, n, t - lag, c, part);
                else if (before)
                    u = load(before + (taps - 1 + t - lag) * width + c, part);
            }
            terms.v[k] = dv * u;
        }
        return terms;
    });
}

void backward_weight(const Stream& stream, const ShortConvolution& f, View dz, View dw, View dbias) {
    const int64_t taps = size(f.w, 1);
    with_type(f.x.dtype, [&]<class T>(Type<T>) {
        for (int64_t n = 0; n < size(f.x, 0); ++n) {
            if (taps == 3)
                add_taps<3, T>(stream, f, dz, dw, n, 0);
            else
                for (int64_t j = 0; j < taps; ++j) add_taps<1, T>(stream, f, dz, dw, n, j);
            if (!dbias.data) continue;
            add_column_sums<1>(stream, size(f.x, 1), size(f.w, 0), Targets<1>{{dbias.as<float>()}},
                               [=, &f](int64_t t, int64_t c, auto part) {
                                   return Vecs<1>{{gradient_of_convolved<T>(f, dz, n, t, c, part)}};
                               });
        }
    });
}

void state_of(const Stream& stream, View b, View x, View before, View state) {
    const int64_t added = size(x, 1), kept = size(state, 1), width = size(state, 2);
    with_type(x.dtype, [&]<class T>(Type<T>) {
        parallel_for(stream, size(state, 0) * kept, row_grain(width), [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
                const int64_t n = i / kept, t = i % kept - kept + added;  // of b and x
                float* out = state.as<float>() + i * width;
                const float* old = before.data ? before.as<float>() + (n * kept + kept + t) * width : nullptr;
                for_vectors(0, width, [&](int64_t c, auto part) {
                    if (t >= 0)
                        store(gated<T>(b, x, n, t, c, part), out + c, part);
                    else
                        store(old ? load(old + c, part) : zero(), out + c, part);
                });
            }
        });
    });
}

}  // namespace

void fill_short_convolution(KernelTable& table) {
    table.short_convolution_forward = forward;
    table.short_convolution_backward_input = backward_input;
    table.short_convolution_backward_before = backward_before;
    table.short_convolution_backward_weight = backward_weight;
    table.short_convolution_state = state_of;
}

}  // namespace tutti::kernels::TUTTI_ISA
