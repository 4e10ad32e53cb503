// kernels/cpu/isa/attention_backward.cpp: the gradients of attention, with P taken again from lse tile by tile (Dao et
// al. 2022, algorithm 4; its letters): P = exp(scale S - lse), dP = dO V^T, dS = scale P (dP - delta), delta = dO.O; dV
// += P^T dO, dK += dS^T Q, dQ += dS K. Layouts are in attention_tiles.h. Below: tile_product.h. Called by:
// attention.cpp, which fills the table.
//
// One thread has all keys of one (batch, key head) and walks over blocks of query rows, so dK and dV need no atomics
// and are summed in the same order in every run. Where there are fewer key heads than threads can share evenly, the
// blocks are dealt out to `splits` copies of dK and dV, added up at the end in order: results then depend on the thread
// count.
#include "tutti/kernels/cpu/isa/attention_tiles.h"

namespace tutti::kernels::TUTTI_ISA {

namespace {

constexpr int64_t kKeys = 64;  // of a tile: S, dP and their words stay in L1 and L2
constexpr float kInfinity = __builtin_inff();

// How the work is cut and where things lie in the workspace, in floats.
struct Plan {
    int64_t heads, splits, padded_D, sums, slot;

    Plan(const Stream& stream, const Sizes& s) : heads(s.B * s.Hkv), splits(1), padded_D(round_up(s.D, kLanes)) {
        if (heads > 0 && heads < 4 * stream.threads)
            splits = larger(1, smaller(stream.threads / common_divisor(heads, stream.threads), s.blocks()));
        sums = 2 * s.Tk * padded_D;  // dK and dV of one key head
        slot = round_up(3 * (s.Tk + 1) * s.D + kRows * (5 * padded_D + 2 * s.D) + 5 * kKeys * kRows + 16 * 16, 16);
    }
    // With one split, a task's sums are written out at its end and the slot's next task has them.
    int64_t sums_count(int64_t slots) const { return splits == 1 ? slots : heads * splits; }
    int64_t sums_index(int64_t task, int64_t slot_index) const { return splits == 1 ? slot_index : task; }

  private:
    static int64_t common_divisor(int64_t a, int64_t b) { return b == 0 ? a : common_divisor(b, a % b); }
};

template <class Word>
struct Tiles {
    Word *k, *v;             // (Tk, D): rows, for S and dP
    Word* k_interleaved;     // (Tk / kPack, D), for dQ
    Word *q, *dy;            // (D, rows)
    Word *q_rows, *dy_rows;  // (rows / kPack, padded D) interleaved
    Word *p, *ds;            // (keys, rows): words along the rows
    Word* ds_interleaved;    // (keys / kPack, rows): words along the keys
    float *s, *dp;           // (keys, rows)
    float *dq, *staged;      // (D, rows), (rows, D)
    float *dk, *dv;          // (Tk, padded D): sums
};

template <class T, class Word>
Tiles<Word> tiles_of(float* slot, float* sums, const Sizes& s, const Plan& plan) {
    constexpr bool kPairs = Operand<T>::kPack == 2;
    Workspace space{slot};
    Tiles<Word> t;
    t.k = space.take<Word>(s.Tk * s.D);
    t.v = space.take<Word>(s.Tk * s.D);
    t.k_interleaved = kPairs ? space.take<Word>((s.Tk + 1) * s.D) : t.k;
    t.q = space.take<Word>(s.D * kRows);
    t.dy = space.take<Word>(s.D * kRows);
    t.q_rows = space.take<Word>(kRows * plan.padded_D);
    t.dy_rows = space.take<Word>(kRows * plan.padded_D);
    t.s = space.take<float>(kKeys * kRows);
    t.dp = space.take<float>(kKeys * kRows);
    t.p = kPairs ? space.take<Word>(kKeys * kRows) : reinterpret_cast<Word*>(t.s);
    t.ds = kPairs ? space.take<Word>(kKeys * kRows) : reinterpret_cast<Word*>(t.dp);
    t.ds_interleaved = kPairs ? space.take<Word>(kKeys * kRows) : t.ds;
    t.dq = space.take<float>(s.D * kRows);
    t.staged = space.take<float>(kRows * plan.padded_D);
    t.dk = sums;
    t.dv = sums + s.Tk * plan.padded_D;
    return t;
}

// What a block of rows brings along; lanes beyond its last row have lse = infinity, so P = 0 there.
struct RowValues {
    float lse[kRows], delta[kRows];
    Visible visible;
};
template <class T>
RowValues row_values(const AttentionBackward& a, const Sizes& s, const RowBlock& block) {
    RowValues values{};
    values.visible = visible_keys(a, block, s.Tk);
    for (int64_t r = 0; r < kRows; ++r) values.lse[r] = kInfinity;
    const float* lse = a.lse.as<const float>() + block.b * a.lse.strides[0];
    for (int64_t r = 0; r < block.count; ++r) {
        const float x = lse[block.head(r) * a.lse.strides[1] + block.query(r) * a.lse.strides[2]];
        values.lse[r] = x == -kInfinity ? kInfinity : x;  // a row that saw no key has no gradient
        const T *dy = block.row<const T>(a.dy, r), *o = block.row<const T>(a.o, r);
        values.delta[r] = row_sum(s.D, [&](int64_t i, auto part) { return load(dy + i, part) * load(o + i, part); });
    }
    return values;
}

[[gnu::always_inline]] inline void store_words_of(const Vec (&p)[2], const Vec (&ds)[2], const Tiles<float>& t,
                                                  int64_t j, int64_t v) {
    store(p[0], t.p + j * kRows + v * kLanes, Full{});
    store(ds[0], t.ds + j * kRows + v * kLanes, Full{});
}
[[gnu::always_inline]] inline void store_words_of(const Vec (&p)[2], const Vec (&ds)[2], const Tiles<Pair>& t,
                                                  int64_t j, int64_t v) {
    for (int64_t odd = 0; odd < 2; ++odd) {
        const int64_t at = (j + odd) * kRows + v * kLanes;
        store(p[odd], reinterpret_cast<bf16*>(t.p) + at, Full{});
        store(ds[odd], reinterpret_cast<bf16*>(t.ds) + at, Full{});
    }
    store_pairs(ds[0], ds[1], t.ds_interleaved + j / 2 * kRows + v * kLanes);
}

// P = exp(scale S - lse), 0 where hidden;  dS = scale P (dP - delta).
// For keys [from, to) of the tile that begins at key `first`; `from` is at the begin of a word.
template <bool masked, class T, class Word>
void softmax_gradient(const Tiles<Word>& t, int64_t first, int64_t from, int64_t to, int64_t lane, int64_t width,
                      float scale, const RowValues& rows) {
    constexpr int64_t kPack = Operand<T>::kPack;
    for (int64_t v = lane / kLanes; v < (lane + width) / kLanes; ++v) {
        const Vec lse = load(rows.lse + v * kLanes, Full{}), delta = load(rows.delta + v * kLanes, Full{});
        for (int64_t j = from; j < to; j += kPack) {
            Vec p[2] = {zero(), zero()}, ds[2] = {zero(), zero()};
            for (int64_t odd = 0; odd < kPack && j + odd < to; ++odd) {
                const int64_t at = (j + odd) * kRows + v * kLanes;
                p[odd] = exp(load(t.s + at, Full{}) * broadcast(scale) - lse);
                if constexpr (masked) p[odd] = zero_unless(rows.visible.of(v, first + j + odd), p[odd]);
                ds[odd] = p[odd] * (load(t.dp + at, Full{}) - delta) * broadcast(scale);
            }
            store_words_of(p, ds, t, j, v);
        }
    }
}

// P, dS and dQ of lanes [lane, lane + width) for a part of the tile that begins at key `first`.
template <bool masked, class T, class Word>
void lanes_gradient(const Tiles<Word>& t, const Sizes& s, float scale, int64_t first, Keys part, int64_t lane,
                    int64_t width, const RowValues& rows) {
    constexpr int64_t kPack = Operand<T>::kPack;
    const int64_t words = (s.D + kPack - 1) / kPack, keys = part.end - part.first, from = part.first - first;
    tile_product(Left<Word>{t.k + part.first * words, words, 1}, Right<Word>{t.q + lane, kRows},
                 Product{t.s + from * kRows + lane, kRows}, keys, width, words, false);
    tile_product(Left<Word>{t.v + part.first * words, words, 1}, Right<Word>{t.dy + lane, kRows},
                 Product{t.dp + from * kRows + lane, kRows}, keys, width, words, false);
    softmax_gradient<masked, T>(t, first, from, from + keys, lane, width, scale, rows);
    tile_product(Left<Word>{t.k_interleaved + part.first / kPack * s.D, 1, s.D},
                 Right<Word>{t.ds_interleaved + from / kPack * kRows + lane, kRows}, Product{t.dq + lane, kRows}, s.D,
                 width, (keys + kPack - 1) / kPack, true);
}

template <class T, class Word>
void block_gradient(const AttentionBackward& a, const Sizes& s, const Plan& plan, const RowBlock& block,
                    const Tiles<Word>& t) {
    constexpr int64_t kPack = Operand<T>::kPack;
    const int64_t D = s.D, P = plan.padded_D, width = block.width();
    const RowValues rows = row_values<T>(a, s, block);
    Word* staged = reinterpret_cast<Word*>(t.staged);
    stage_transposed<T>(block, a.q, D, staged, t.q);
    stage_transposed<T>(block, a.dy, D, staged, t.dy);
    // Rows of zeros fill the block: their P is 0, but 0 times what lay there before may be no number.
    __builtin_memset(t.q_rows, 0, static_cast<size_t>(kRows * P) * sizeof(Word));
    __builtin_memset(t.dy_rows, 0, static_cast<size_t>(kRows * P) * sizeof(Word));
    stage_interleaved([&](int64_t r) { return block.row<const T>(a.q, r); }, block.count, D, t.q_rows, P);
    stage_interleaved([&](int64_t r) { return block.row<const T>(a.dy, r); }, block.count, D, t.dy_rows, P);
    __builtin_memset(t.dq, 0, static_cast<size_t>(D * kRows) * sizeof(float));

    const Keys any = rows.visible.any();
    for (int64_t first = any.first / kKeys * kKeys; first < any.end; first += kKeys) {
        const Keys tile{first, smaller(first + kKeys, any.end)};
        const int64_t keys = tile.end - first;
        if (holds(rows.visible.all(), tile)) {
            lanes_gradient<false, T>(t, s, a.scale, first, tile, 0, width, rows);
        } else {
            // On an edge of what is seen lanes take what they see; elsewhere P and dS are 0.
            __builtin_memset(static_cast<void*>(t.p), 0, static_cast<size_t>(keys * kRows) * sizeof(float) / kPack);
            __builtin_memset(static_cast<void*>(t.ds), 0, static_cast<size_t>(keys * kRows) * sizeof(float) / kPack);
            for (int64_t lane = 0; lane < width; lane += kStep) {
                const Keys part = part_of<T>(tile, rows.visible.of_lanes(lane));
                if (part.first < part.end)
                    lanes_gradient<true, T>(t, s, a.scale, first, part, lane, smaller(kStep, width - lane), rows);
            }
        }
        tile_product(Left<Word>{t.p, kRows / kPack, 1}, Right<Word>{t.dy_rows, P}, Product{t.dv + first * P, P}, keys,
                     P, width / kPack, true);
        tile_product(Left<Word>{t.ds, kRows / kPack, 1}, Right<Word>{t.q_rows, P}, Product{t.dk + first * P, P}, keys,
                     P, width / kPack, true);
    }
    store_transposed<T>(block, t.dq, D, t.staged, a.dq);
}

// dk, dv of one key head = the sums of its splits, added in order and rounded once.
template <class T>
void write_sums(const AttentionBackward& a, const Sizes& s, const Plan& plan, int64_t head, const float* sums) {
    for (int64_t j = 0; j < s.Tk; ++j) {
        T* dk = row_of<T>(a.dk, head / s.Hkv, j, head % s.Hkv);
        T* dv = row_of<T>(a.dv, head / s.Hkv, j, head % s.Hkv);
        for_vectors(0, s.D, [&](int64_t d, auto part) {
            const float *from_k = sums + j * plan.padded_D + d, *from_v = from_k + s.Tk * plan.padded_D;
            Vec k = load(from_k, part), v = load(from_v, part);
            for (int64_t i = 1; i < plan.splits; ++i) {
                k = k + load(from_k + i * plan.sums, part);
                v = v + load(from_v + i * plan.sums, part);
            }
            store(k, dk + d, part);
            store(v, dv + d, part);
        });
    }
}

template <class T>
void gradients(const Stream& stream, const AttentionBackward& a) {
    using Word = typename Operand<T>::Word;
    const Sizes s = sizes_of(a.q.shape.begin(), a.k.shape.begin());
    const Plan plan(stream, s);
    const int64_t words = (s.D + Operand<T>::kPack - 1) / Operand<T>::kPack;
    float* slots = a.workspace.as<float>();
    float* all_sums = slots + stream.threads * plan.slot;
    tasks_in_slots(stream, plan.heads * plan.splits, [&](int64_t task, int64_t slot) {
        const int64_t head = task / plan.splits, b = head / s.Hkv, kv_head = head % s.Hkv;
        float* sums = all_sums + plan.sums_index(task, slot) * plan.sums;
        const Tiles<Word> t = tiles_of<T, Word>(slots + slot * plan.slot, sums, s, plan);
        __builtin_memset(sums, 0, static_cast<size_t>(plan.sums) * sizeof(float));
        for (int64_t j = 0; j < s.Tk; ++j) {
            stage_row(row_of<const T>(a.k, b, j, kv_head), s.D, t.k + j * words, words);
            stage_row(row_of<const T>(a.v, b, j, kv_head), s.D, t.v + j * words, words);
        }
        if constexpr (Operand<T>::kPack == 2)
            stage_interleaved([&](int64_t j) { return row_of<const T>(a.k, b, j, kv_head); }, s.Tk, s.D,
                              t.k_interleaved, s.D);
        for (int64_t block = task % plan.splits; block < s.blocks(); block += plan.splits)
            block_gradient<T>(a, s, plan, row_block(s, b, kv_head, block), t);
        if (plan.splits == 1) write_sums<T>(a, s, plan, head, sums);
    });
    if (plan.splits > 1)
        parallel_tasks(stream, plan.heads, [&](int64_t head) {
            write_sums<T>(a, s, plan, head, all_sums + head * plan.splits * plan.sums);
        });
}

}  // namespace

int64_t attention_backward_workspace(const Stream& stream, const Sizes& s) {
    const Plan plan(stream, s);
    return stream.threads * plan.slot + plan.sums_count(stream.threads) * plan.sums;
}

void attention_backward(const Stream& stream, const AttentionBackward& a) {
    with_type(a.q.dtype, [&](auto type) { gradients<typename decltype(type)::type>(stream, a); });
}

}  // namespace tutti::kernels::TUTTI_ISA
