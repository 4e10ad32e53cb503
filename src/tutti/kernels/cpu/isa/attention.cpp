// kernels/cpu/isa/attention.cpp: softmax attention in tiles, with an online softmax (Milakov and
// Gimelshein 2018; Dao et al. 2022): there is no (T, T) array, and tiles that no row sees are skipped.
// attention_tiles.h describes the layouts.
//
// bf16: with AVX512_BF16 both products take bf16 operands and sum in f32; P is rounded to bf16 on the way, its sum is
// not (as on GPUs). Without, everything after the load is f32.
#include "tutti/kernels/cpu/isa/attention_tiles.h"
#include "tutti/kernels/cpu/isa/parts.h"

namespace tutti::kernels::TUTTI_ISA {

namespace {

using attention::kKeys;
constexpr int64_t kTogether = attention::kForwardTogether;
constexpr float kInfinity = __builtin_inff();

// The softmax may subtract any number near the scores of a row instead of their maximum: sums of powers of two are as
// exact at 2^60 as at 1, and powers below 2^-126 beside them are negligible. So the shift of every row begins at 0 and
// changes only where scores differ from it by more than this.
constexpr float kSlack = 60;

template <class Word>
struct Tiles {
    Word *k, *v, *p;           // (keys, D); (Dv, keys): V^T; (keys, rows): P^T
    float *s, *staged;         // (kChunk, rows): S^T; scratch memory for transposition
    Word* q[kTogether] = {};   // (D, rows) of each block
    float* o[kTogether] = {};  // (Dv, rows): O^T
};

// `slot`: attention::forward_slot(padded_D) floats.
template <class Word>
Tiles<Word> tiles_of(float* slot, int64_t padded_D) {
    Workspace space{slot};
    Tiles<Word> t;
    t.k = space.take<Word>(kKeys * padded_D);
    t.v = space.take<Word>(kKeys * padded_D);
    t.staged = space.take<float>(kKeys * padded_D);
    t.p = space.take<Word>(kKeys * kRows);
    t.s = space.take<float>(kChunk * kRows);
    for (int64_t i = 0; i < kTogether; ++i) {
        t.q[i] = space.take<Word>(padded_D * kRows);
        t.o[i] = space.take<float>(padded_D * kRows);
    }
    return t;
}

// State of each row, in powers of two: with x = scale log2(e) S - shift, the sum of 2^x so far, and the sum of 2^x and
// the largest x of the current tile.
struct Softmax {
    float shift[kRows], sum[kRows], tile_sum[kRows], tile_maximum[kRows];
};

struct State {
    RowBlock block;
    Visible visible;
    Softmax softmax;
};

[[gnu::always_inline]] inline void store_probabilities(const Vec (&p)[1], float* to) { store(p[0], to, Full{}); }
[[gnu::always_inline]] inline void store_probabilities(const Vec (&p)[2], Pair* to) { store_pairs(p[0], p[1], to); }

// P^T = 2^x of one chunk, 0 where the key is hidden.
template <bool masked, class T, class Word>
void exponentiate(const float* s, Lanes lanes, float factor, const Visible& visible, int64_t first_key,
                  Softmax& softmax, Word* p) {
    constexpr int64_t kPack = Operand<T>::kPack;
    for (int64_t lane = lanes.first; lane < lanes.first + lanes.count; lane += kLanes) {
        const Vec minus_shift = zero() - load(softmax.shift + lane, Full{});
        Vec sum = load(softmax.tile_sum + lane, Full{}), maximum = load(softmax.tile_maximum + lane, Full{});
        for (int64_t j = 0; j < kChunk; j += kPack) {
            Vec word[kPack];
            for (int64_t i = 0; i < kPack; ++i) {
                Vec x = fma(load(s + (j + i) * kRows + lane, Full{}), broadcast(factor), minus_shift);
                if constexpr (masked)
                    x = select(visible.of(lane / kLanes, first_key + j + i), x, broadcast(-kInfinity));
                maximum = max(maximum, x);
                word[i] = exp2_bounded(x);
                sum = sum + word[i];
            }
            store_probabilities(word, p + j / kPack * kRows + lane);
        }
        store(sum, softmax.tile_sum + lane, Full{});
        store(maximum, softmax.tile_maximum + lane, Full{});
    }
}

// Gives rows whose scores are too far from their shift a new shift, and rescales O and the sum so far. Returns false if
// no row needs one.
bool move_shifts(Softmax& softmax, float* o, int64_t Dv, int64_t width) {
    float factors[kRows];
    bool any = false;
    for (int64_t r = 0; r < width; ++r) {
        const float x = softmax.tile_maximum[r], shift = softmax.shift[r] + x;
        const bool none_before = softmax.sum[r] == 0;
        const bool moves = (x > kSlack || (none_before && x < -kSlack && x > -kInfinity)) && shift != softmax.shift[r];
        factors[r] = moves && !none_before ? -x : 0.0f;
        if (moves) softmax.shift[r] = shift;
        any |= moves;
    }
    if (!any) return false;
    for (int64_t r = 0; r < width; r += kLanes) {
        const Vec factor = exp2_bounded(load(factors + r, Full{}));
        store(load(softmax.sum + r, Full{}) * factor, softmax.sum + r, Full{});
        for (int64_t d = 0; d < Dv; ++d) store(load(o + d * kRows + r, Full{}) * factor, o + d * kRows + r, Full{});
    }
    return true;
}

// o = O / sum;  lse = ln 2^shift + ln sum. A row that saw no key has sum 0: o = 0, lse = -infinity.
void finish(const AttentionForward& a, const State& state, int64_t Dv, float* o, float* staged) {
    const auto& [block, visible, softmax] = state;
    float inverse[kRows];
    for (int64_t r = 0; r < kRows; ++r) inverse[r] = softmax.sum[r] == 0 ? 0.0f : 1 / softmax.sum[r];
    store_transposed(
        block, o, Dv, [&](int64_t r) { return inverse[r]; }, staged, a.o, false);
    float* lse = a.lse.as<float>() + block.b * a.lse.strides[0];
    for (int64_t r = 0; r < block.count; ++r)
        lse[block.head(r) * a.lse.strides[1] + block.query(r) * a.lse.strides[2]] =
            softmax.sum[r] == 0 ? -kInfinity : softmax.shift[r] * kLn2 + __builtin_logf(softmax.sum[r]);
}

struct Scores {
    float scale, cap;
};

// P^T of block i, chunk by chunk.
template <class T, class Word>
void make_probabilities(const Tiles<Word>& t, int64_t i, int64_t D, Scores scores, Keys tile, State& state) {
    const int64_t words = Operand<T>::words(D);
    const float factor = (scores.cap > 0 ? 1 : scores.scale) * kLog2E;
    auto& [block, visible, softmax] = state;
    for (int64_t r = 0; r < kRows; ++r) softmax.tile_sum[r] = 0, softmax.tile_maximum[r] = -kInfinity;
    for (int64_t first = tile.first; first < tile.end; first += kChunk) {
        const Keys chunk{first, first + kChunk};
        const Lanes lanes = visible.lanes(chunk);
        if (lanes.count == 0) continue;
        // S^T = K Q^T
        tile_product(Left<Word>{t.k + (first - tile.first) * words, words, 1}, Right<Word>{t.q[i] + lanes.first, kRows},
                     Product{t.s + lanes.first, kRows}, kChunk, lanes.count, words, false);
        if (scores.cap > 0) cap_scores(t.s, lanes, scores.scale, scores.cap);
        Word* p = t.p + (first - tile.first) / Operand<T>::kPack * kRows;
        if (holds(visible.all(), chunk))
            exponentiate<false, T>(t.s, lanes, factor, visible, first, softmax, p);
        else
            exponentiate<true, T>(t.s, lanes, factor, visible, first, softmax, p);
    }
}

template <class T, class Word>
void attend_tile(const Tiles<Word>& t, int64_t i, const Sizes& s, Scores scores, Keys tile, State& state) {
    constexpr int64_t kPack = Operand<T>::kPack;
    auto& [block, visible, softmax] = state;
    do make_probabilities<T>(t, i, s.D, scores, tile, state);
    while (move_shifts(softmax, t.o[i], s.Dv, visible.width));
    for (int64_t r = 0; r < kRows; ++r) softmax.sum[r] += softmax.tile_sum[r];
    // O^T += V^T P^T, over all chunks in a row that the same lanes see.
    for_chunks_of_same_lanes(visible, tile, [&](Keys keys, Lanes lanes) {
        const int64_t word = (keys.first - tile.first) / kPack;
        tile_product(Left<Word>{t.v + word, kKeys / kPack, 1}, Right<Word>{t.p + word * kRows + lanes.first, kRows},
                     Product{t.o[i] + lanes.first, kRows}, Operand<T>::height(s.Dv), lanes.count,
                     (keys.end - keys.first) / kPack, true);
    });
}

// Blocks [first_block, first_block + blocks) of one key head.
template <class T>
void attend(const AttentionForward& a, const Sizes& s, int64_t head, int64_t first_block, int64_t blocks, float* slot) {
    using Word = typename Operand<T>::Word;
    const int64_t D = s.D, words = Operand<T>::words(D);
    const int64_t b = head / s.Hkv, kv_head = head % s.Hkv;
    const Tiles<Word> t = tiles_of<Word>(slot, s.padded_D);
    Word* staged = reinterpret_cast<Word*>(t.staged);
    State states[kTogether];
    for (int64_t i = 0; i < blocks; ++i) {
        State& state = states[i];
        state.block = row_block(s, b, kv_head, first_block + i);
        state.visible = visible_keys(a.mask, state.block, s.Tk);
        for (int64_t r = 0; r < kRows; ++r) state.softmax.shift[r] = state.softmax.sum[r] = 0;
        __builtin_memset(t.o[i], 0, static_cast<size_t>(s.padded_D * kRows) * sizeof(float));
        stage_transposed<T>(state.block, a.q, D, staged, t.q[i]);
    }
    const int64_t end = states[blocks - 1].visible.any().end;
    // Tiles begin at multiples of kKeys, so that results do not depend on how many blocks go together.
    for (int64_t first = states[0].visible.any().first / kKeys * kKeys; first < end; first += kKeys) {
        const int64_t keys = smaller(kKeys, end - first);
        const auto key = [&](int64_t j) { return row_of<const T>(a.k, b, first + j, kv_head); };
        for (int64_t j = 0; j < keys; ++j) {
            fetch_ahead(key, j, keys, D);
            stage_row(key(j), D, t.k + j * words, words);
        }
        stage_columns<T>([&](int64_t j) { return row_of<const T>(a.v, b, first + j, kv_head); }, keys, s.Dv, staged,
                         t.v, kKeys / Operand<T>::kPack);
        for (int64_t i = 0; i < blocks; ++i) {
            const Keys any = states[i].visible.any(), tile{first, smaller(first + keys, any.end)};
            if (any.first < tile.end && first < tile.end) attend_tile<T>(t, i, s, {a.scale, a.cap}, tile, states[i]);
        }
    }
    for (int64_t i = 0; i < blocks; ++i) finish(a, states[i], s.Dv, t.o[i], t.staged);
}

void attention_forward(const Stream& stream, const AttentionForward& a) {
    const Sizes s = sizes_of(a.q.shape, a.v.shape);
    if (s.rows <= kFewRows) return attend_few_rows(stream, a);
    const int64_t heads = s.B * s.Hkv, blocks = s.blocks, slot_size = attention::forward_slot(s.padded_D);
    // Fewer blocks per task where there would be too few tasks for the threads; the results are the same.
    const int64_t together = larger(1, smaller(kTogether, blocks * heads / (2 * stream.threads)));
    const int64_t tasks_of_head = (blocks + together - 1) / together;
    // Head by head, so that K and V stay in L2; within a head the long causal blocks first, so that the threads end
    // together.
    tasks_in_slots(stream, heads * tasks_of_head, [&](int64_t task, int64_t slot) {
        const int64_t first = (tasks_of_head - 1 - task % tasks_of_head) * together;
        with_type(a.q.dtype, [&](auto type) {
            attend<typename decltype(type)::type>(a, s, task / tasks_of_head, first, smaller(together, blocks - first),
                                                  a.workspace.as<float>() + slot * slot_size);
        });
    });
}

void attention_merge(const Stream& stream, View o, View lse, View o_part, View lse_part) {
    const int64_t B = size(o, 0), T = size(o, 1), H = size(o, 2), D = size(o, 3);
    parallel_tasks(stream, B * T, [&](int64_t task) {
        const int64_t b = task / T, i = task % T;
        for (int64_t h = 0; h < H; ++h) {
            float& before = *row_of<float>(lse, b, h, i);
            const float added = *row_of<float>(lse_part, b, h, i);
            if (added == -kInfinity) continue;
            const float largest = before > added ? before : added;
            const float e1 = __builtin_expf(before - largest), e2 = __builtin_expf(added - largest), sum = e1 + e2;
            const Vec w1 = broadcast(e1 / sum), w2 = broadcast(e2 / sum);
            float* y = row_of<float>(o, b, i, h);
            const float* x = row_of<float>(o_part, b, i, h);
            for_vectors(0, D, [&](int64_t d, auto part) {
                store(load(y + d, part) * w1 + load(x + d, part) * w2, y + d, part);
            });
            before = largest + __builtin_logf(sum);
        }
    });
}

template <class T>
float sink_of(const View& sinks, int64_t h) {
    return reduce_add(keep(load(sinks.as<T>() + h, Tail{1}), Tail{1}));
}

void attention_sinks(const Stream& stream, View o, View lse, View sinks) {
    const int64_t B = size(o, 0), T = size(o, 1), H = size(o, 2), D = size(o, 3);
    with_type(o.dtype, [&]<class A>(Type<A>) {
        parallel_tasks(stream, B * T, [&](int64_t task) {
            const int64_t b = task / T, i = task % T;
            for (int64_t h = 0; h < H; ++h) {
                float& before = *row_of<float>(lse, b, h, i);
                const float sink = sink_of<A>(sinks, h), largest = before > sink ? before : sink;
                const float e = __builtin_expf(before - largest), sum = e + __builtin_expf(sink - largest);
                const Vec weight = broadcast(e / sum);
                A* y = row_of<A>(o, b, i, h);
                for_vectors(0, D, [&](int64_t d, auto part) { store(load(y + d, part) * weight, y + d, part); });
                before = largest + __builtin_logf(sum);
            }
        });
    });
}

// A thread takes a head; the sum over its rows is in f64, in their order.
void attention_sinks_backward(const Stream& stream, View dy, View o, View lse, View sinks, View dsinks) {
    const int64_t B = size(o, 0), T = size(o, 1), H = size(o, 2), D = size(o, 3);
    with_type(o.dtype, [&]<class A>(Type<A>) {
        parallel_tasks(stream, H, [&](int64_t h) {
            const float sink = sink_of<A>(sinks, h);
            double sum = 0;
            for (int64_t b = 0; b < B; ++b)
                for (int64_t i = 0; i < T; ++i) {
                    const A *gradient = row_of<A>(dy, b, i, h), *y = row_of<A>(o, b, i, h);
                    const float dot =
                        row_sum(D, [&](int64_t d, auto part) { return load(gradient + d, part) * load(y + d, part); });
                    sum += static_cast<double>(__builtin_expf(sink - *row_of<float>(lse, b, h, i))) *
                           static_cast<double>(dot);
                }
            float& total = dsinks.as<float>()[h];
            total = static_cast<float>(static_cast<double>(total) - sum);
        });
    });
}

}  // namespace

void fill_attention(KernelTable& table) {
    table.attention_forward = attention_forward;
    table.attention_backward = attention_backward;
    table.attention_merge = attention_merge;
    table.attention_sinks = attention_sinks;
    table.attention_sinks_backward = attention_sinks_backward;
}

}  // namespace tutti::kernels::TUTTI_ISA
