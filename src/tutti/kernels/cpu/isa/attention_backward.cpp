// kernels/cpu/isa/attention_backward.cpp: the gradients of attention, with P recomputed from lse tile by tile (Dao et
// al. 2022, algorithm 4; its letters): P = exp(scale S - lse), dP = dO V^T, dS = scale P (dP - delta), delta = dO.O; dV
// += P^T dO, dK += dS^T Q, dQ += dS K. With a cap c, c tanh(scale S / c) stands in place of scale S, and dS has the
// factor 1 - tanh^2. attention_tiles.h describes the layouts.
//
// One thread owns all keys of one (batch, key head) and visits blocks of query rows, a few at a time, so dK and dV need
// no atomics and are summed in the same order in every run. Where there are fewer key heads than threads can share
// evenly, the blocks are distributed over `splits` copies of dK and dV, which are added in order at the end: results
// then depend on the number of threads.
#include "tutti/kernels/cpu/isa/attention_tiles.h"

namespace tutti::kernels::TUTTI_ISA {

namespace {

using attention::kKeys;
constexpr int64_t kTogether = attention::kBackwardTogether;
constexpr float kInfinity = __builtin_inff();

using Plan = attention::BackwardPlan;

// Operands and sums of a block of query rows; lanes beyond its last row have lse = infinity, so P = 0 there.
template <class Word>
struct Rows {
    RowBlock block;
    Visible visible;
    float lse[kRows], delta[kRows];  // lse in powers of two
    Word *q, *dy;                    // (D, rows)
    Word *q_rows, *dy_rows;          // (rows, padded D)
    float* dq;                       // (D, rows): sums
};

template <class Word>
struct Tiles {
    Word *k, *v;      // (Tk, D)
    Word* k_columns;  // (D, kKeys), tile after tile
    Word *p, *ds;     // (keys, rows), words along the rows
    Word* ds_keys;    // (keys, rows), words along the keys
    float *s, *dp;    // (kChunk, rows)
    float* staged;    // scratch memory for transposition
    float *dk, *dv;   // (Tk, padded D): sums
    Rows<Word> rows[kTogether];
};

template <class T, class Word>
Tiles<Word> tiles_of(float* slot, float* sums, const Plan& plan) {
    Workspace space{slot};
    Tiles<Word> t;
    t.k = space.take<Word>(plan.keys * plan.padded_D);
    t.v = space.take<Word>(plan.keys * plan.padded_D);
    t.k_columns = space.take<Word>(plan.keys * plan.padded_D);
    t.staged = space.take<float>((kRows + kKeys) * plan.padded_D);
    t.p = space.take<Word>(kKeys * kRows);
    t.ds = space.take<Word>(kKeys * kRows);
    t.ds_keys = Operand<T>::kPack == 2 ? space.take<Word>(kKeys * kRows) : t.ds;
    t.s = space.take<float>(kChunk * kRows);
    t.dp = space.take<float>(kChunk * kRows);
    for (Rows<Word>& rows : t.rows) {
        for (Word** words : {&rows.q, &rows.dy, &rows.q_rows, &rows.dy_rows})
            *words = space.take<Word>(kRows * plan.padded_D);
        rows.dq = space.take<float>(kRows * plan.padded_D);
    }
    t.dk = sums;
    t.dv = sums + plan.keys * plan.padded_D;
    return t;
}

template <class T, class Word>
void stage_rows(const AttentionBackward& a, const Sizes& s, const RowBlock& block, Word* staged, Rows<Word>& rows) {
    rows.block = block;
    rows.visible = visible_keys(a.mask, block, s.Tk);
    const float* lse = a.lse.as<const float>() + block.b * a.lse.strides[0];
    for (int64_t r = 0; r < kRows; ++r) {
        rows.lse[r] = kInfinity, rows.delta[r] = 0;
        if (r >= block.count) continue;
        const float x = lse[block.head(r) * a.lse.strides[1] + block.query(r) * a.lse.strides[2]];
        if (x == -kInfinity) continue;  // a row that saw no key has no gradient
        rows.lse[r] = x * kLog2E;
        const auto dy_row = [&](int64_t i) { return block.row<const T>(a.dy, i); };
        fetch_ahead(dy_row, r, block.count, s.Dv);
        const T* dy = dy_row(r);
        with_type(a.o.dtype, [&](auto type) {
            const auto o_row = [&](int64_t i) { return block.row<const typename decltype(type)::type>(a.o, i); };
            fetch_ahead(o_row, r, block.count, s.Dv);
            const auto* o = o_row(r);
            rows.delta[r] = row_sum(s.Dv, [&](int64_t i, auto part) { return load(dy + i, part) * load(o + i, part); });
        });
    }
    const int64_t P = s.padded_D;
    stage_transposed<T>(block, a.q, s.D, staged, rows.q);
    stage_transposed<T>(block, a.dy, s.Dv, staged, rows.dy);
    // Rows of zeros fill the block: their P is 0, but 0 times the memory's old values may be NaN.
    __builtin_memset(rows.q_rows, 0, static_cast<size_t>(kRows * P) * sizeof(Word));
    __builtin_memset(rows.dy_rows, 0, static_cast<size_t>(kRows * P) * sizeof(Word));
    stage_interleaved([&](int64_t r) { return block.row<const T>(a.q, r); }, block.count, s.D, rows.q_rows, P);
    stage_interleaved([&](int64_t r) { return block.row<const T>(a.dy, r); }, block.count, s.Dv, rows.dy_rows, P);
    __builtin_memset(rows.dq, 0, static_cast<size_t>(kRows * P) * sizeof(float));
}

template <class T, class Word>
void stage_keys(const AttentionBackward& a, const Sizes& s, int64_t b, int64_t kv_head, const Tiles<Word>& t) {
    const int64_t words = Operand<T>::words(s.D), words_v = Operand<T>::words(s.Dv), P = s.padded_D;
    const auto key = [&](int64_t j) { return row_of<const T>(a.k, b, j, kv_head); };
    const auto value = [&](int64_t j) { return row_of<const T>(a.v, b, j, kv_head); };
    for (int64_t j = 0; j < s.Tk; ++j) {
        fetch_ahead(key, j, s.Tk, s.D);
        fetch_ahead(value, j, s.Tk, s.Dv);
        stage_row(key(j), s.D, t.k + j * words, words);
        stage_row(value(j), s.Dv, t.v + j * words_v, words_v);
    }
    for (int64_t first = 0; first < s.Tk; first += kKeys)
        stage_columns<T>([&](int64_t j) { return row_of<const T>(a.k, b, first + j, kv_head); },
                         smaller(kKeys, s.Tk - first), s.D, reinterpret_cast<Word*>(t.staged), t.k_columns + first * P,
                         kKeys / Operand<T>::kPack);
}

// P and dS / scale of keys j, j + 1, ... and the lanes from `at % kRows` on.
[[gnu::always_inline]] inline void store_gradients(const Vec (&p)[1], const Vec (&ds)[1], const Tiles<float>& t,
                                                   int64_t at) {
    store(p[0], t.p + at, Full{});
    store(ds[0], t.ds + at, Full{});
}
[[gnu::always_inline]] inline void store_gradients(const Vec (&p)[2], const Vec (&ds)[2], const Tiles<Pair>& t,
                                                   int64_t at) {
    for (int64_t i = 0; i < 2; ++i) {
        store_rounded(p[i], reinterpret_cast<bf16*>(t.p) + at + i * kRows);
        store_rounded(ds[i], reinterpret_cast<bf16*>(t.ds) + at + i * kRows);
    }
    store_pairs(ds[0], ds[1], t.ds_keys + (at - at % kRows) / 2 + at % kRows);
}

// P = 2^(scale log2(e) S - lse), 0 where hidden;  dS / scale = P (dP - delta). Of the chunk that begins at key `first`,
// which is row `row` of the tile. Capped: S are capped scores already, `factor` is log2(e), and dS / scale = P (dP -
// delta) (1 - (S / cap)^2).
template <bool masked, bool capped, class T, class Word>
void softmax_gradient(const Tiles<Word>& t, const Rows<Word>& rows, Lanes lanes, float factor, float inverse_cap,
                      int64_t first, int64_t row) {
    constexpr int64_t kPack = Operand<T>::kPack;
    for (int64_t lane = lanes.first; lane < lanes.first + lanes.count; lane += kLanes) {
        const Vec minus_lse = zero() - load(rows.lse + lane, Full{}), delta = load(rows.delta + lane, Full{});
        for (int64_t j = 0; j < kChunk; j += kPack) {
            Vec p[kPack], ds[kPack];
            for (int64_t i = 0; i < kPack; ++i) {
                const int64_t at = (j + i) * kRows + lane;
                p[i] = exp2_bounded(fma(load(t.s + at, Full{}), broadcast(factor), minus_lse));
                ds[i] = p[i] * (load(t.dp + at, Full{}) - delta);
                if constexpr (capped) {
                    const Vec share = load(t.s + at, Full{}) * broadcast(inverse_cap);
                    ds[i] = ds[i] * fma_negative(share, share, broadcast(1.0f));
                }
                if constexpr (masked) {
                    const Mask seen = rows.visible.of(lane / kLanes, first + j + i);
                    p[i] = zero_unless(seen, p[i]);
                    ds[i] = zero_unless(seen, ds[i]);
                }
            }
            store_gradients(p, ds, t, (row + j) * kRows + lane);
        }
    }
}

// Adds the contribution of one block of rows and one tile of keys to dQ, dK and dV.
template <class T, class Word>
void tile_gradient(const Tiles<Word>& t, const Rows<Word>& rows, const Sizes& s, float scale, float cap, Keys tile) {
    constexpr int64_t kPack = Operand<T>::kPack;
    const int64_t words = Operand<T>::words(s.D), words_v = Operand<T>::words(s.Dv), P = s.padded_D;
    for (int64_t first = tile.first; first < tile.end; first += kChunk) {
        const Keys chunk{first, first + kChunk};
        const Lanes lanes = rows.visible.lanes(chunk);
        if (lanes.count == 0) continue;
        tile_product(Left<Word>{t.k + first * words, words, 1}, Right<Word>{rows.q + lanes.first, kRows},
                     Product{t.s + lanes.first, kRows}, kChunk, lanes.count, words, false);
        tile_product(Left<Word>{t.v + first * words_v, words_v, 1}, Right<Word>{rows.dy + lanes.first, kRows},
                     Product{t.dp + lanes.first, kRows}, kChunk, lanes.count, words_v, false);
        const bool all = holds(rows.visible.all(), chunk);
        if (cap > 0) {
            cap_scores(t.s, lanes, scale, cap);
            (all ? softmax_gradient<false, true, T, Word>
                 : softmax_gradient<true, true, T, Word>)(t, rows, lanes, kLog2E, 1 / cap, first, first - tile.first);
        } else {
            (all ? softmax_gradient<false, false, T, Word>
                 : softmax_gradient<true, false, T, Word>)(t, rows, lanes, scale * kLog2E, 0, first,
                                                           first - tile.first);
        }
    }
    for_chunks_of_same_lanes(rows.visible, tile, [&](Keys keys, Lanes lanes) {
        const int64_t row = keys.first - tile.first, count = keys.end - keys.first, pair = lanes.first / kPack;
        const auto lanes_of = [&](Word* x) { return Left<Word>{x + row * (kRows / kPack) + pair, kRows / kPack, 1}; };
        tile_product(lanes_of(t.p), Right<Word>{rows.dy_rows + pair * P, P}, Product{t.dv + keys.first * P, P}, count,
                     s.padded_Dv, lanes.count / kPack, true);
        tile_product(lanes_of(t.ds), Right<Word>{rows.q_rows + pair * P, P}, Product{t.dk + keys.first * P, P}, count,
                     P, lanes.count / kPack, true);
        tile_product(Left<Word>{t.k_columns + tile.first * P + row / kPack, kKeys / kPack, 1},
                     Right<Word>{t.ds_keys + row / kPack * kRows + lanes.first, kRows},
                     Product{rows.dq + lanes.first, kRows}, Operand<T>::height(s.D), lanes.count, count / kPack, true);
    });
}

// dk, dv of one key head = [dk, dv +] the sums of its splits, added in order and rounded once to the type T.
template <class T>
void write_sums(const AttentionBackward& a, const Sizes& s, const Plan& plan, int64_t head, const float* sums) {
    const auto dk_row = [&](int64_t j) { return row_of<T>(a.dk, head / s.Hkv, j, head % s.Hkv); };
    const auto dv_row = [&](int64_t j) { return row_of<T>(a.dv, head / s.Hkv, j, head % s.Hkv); };
    for (int64_t j = 0; j < s.Tk; ++j) {
        fetch_ahead(dk_row, j, s.Tk, s.D);
        fetch_ahead(dv_row, j, s.Tk, s.Dv);
        T *dk = dk_row(j), *dv = dv_row(j);
        const float *of_k = sums + j * plan.padded_D, *of_v = of_k + plan.keys * plan.padded_D;
        const auto sum = [&](const float* from, auto part) {
            Vec x = load(from, part);
            for (int64_t i = 1; i < plan.splits; ++i) x = x + load(from + i * plan.sums, part);
            return x;
        };
        for_vectors(0, s.D, [&](int64_t d, auto part) {
            put(sum(of_k + d, part) * broadcast(a.scale), a.accumulate, dk + d, part);
        });
        for_vectors(0, s.Dv, [&](int64_t d, auto part) { put(sum(of_v + d, part), a.accumulate, dv + d, part); });
    }
}

// Blocks split, split + splits, ... of one key head, a few of them together.
template <class T, class Word>
void head_gradients(const AttentionBackward& a, const Sizes& s, const Plan& plan, int64_t head, int64_t split,
                    Tiles<Word>& t) {
    const int64_t b = head / s.Hkv, kv_head = head % s.Hkv;
    stage_keys<T>(a, s, b, kv_head, t);
    for (int64_t next = split; next < s.blocks;) {
        int64_t blocks = 0;
        for (; blocks < kTogether && next < s.blocks; ++blocks, next += plan.splits)
            stage_rows<T>(a, s, row_block(s, b, kv_head, next), reinterpret_cast<Word*>(t.staged), t.rows[blocks]);
        const int64_t end = t.rows[blocks - 1].visible.any().end;
        for (int64_t first = t.rows[0].visible.any().first / kKeys * kKeys; first < end; first += kKeys)
            for (int64_t i = 0; i < blocks; ++i) {
                const Keys any = t.rows[i].visible.any(), tile{first, smaller(first + kKeys, any.end)};
                if (any.first < tile.end && first < tile.end) tile_gradient<T>(t, t.rows[i], s, a.scale, a.cap, tile);
            }
        for (int64_t i = 0; i < blocks; ++i)
            store_transposed(
                t.rows[i].block, t.rows[i].dq, s.D, [&](int64_t) { return a.scale; }, t.staged, a.dq, a.accumulate);
    }
}

template <class T>
void gradients(const Stream& stream, const AttentionBackward& a) {
    using Word = typename Operand<T>::Word;
    const Sizes s = sizes_of(a.q.shape, a.v.shape);
    const Plan plan = attention::backward_plan(stream, s);
    float* slots = a.workspace.as<float>();
    float* all_sums = slots + stream.threads * plan.slot;
    const auto write = [&](int64_t head, const float* sums) {
        with_type(a.dk.dtype, [&]<class To>(Type<To>) { write_sums<To>(a, s, plan, head, sums); });
    };
    tasks_in_slots(stream, plan.heads * plan.splits, [&](int64_t task, int64_t slot) {
        const int64_t head = task / plan.splits;
        float* sums = all_sums + (plan.splits == 1 ? slot : task) * plan.sums;
        __builtin_memset(sums, 0, static_cast<size_t>(plan.sums) * sizeof(float));
        Tiles<Word> t = tiles_of<T, Word>(slots + slot * plan.slot, sums, plan);
        head_gradients<T>(a, s, plan, head, task % plan.splits, t);
        if (plan.splits == 1) write(head, sums);
    });
    if (plan.splits > 1)
        parallel_tasks(stream, plan.heads,
                       [&](int64_t head) { write(head, all_sums + head * plan.splits * plan.sums); });
}

}  // namespace

void attention_backward(const Stream& stream, const AttentionBackward& a) {
    with_type(a.q.dtype, [&]<class T>(Type<T>) { gradients<T>(stream, a); });
}

}  // namespace tutti::kernels::TUTTI_ISA
