// kernels/cpu/isa/attention.cpp: softmax attention in tiles, with the softmax taken as the keys come (Milakov and
// Gimelshein 2018; Dao et al. 2022): no (T, T) array, tiles that no row sees are never touched. Layouts are in
// attention_tiles.h. Below: tile_product.h. Called by: cpu/table.cpp.
//
// bf16: with AVX512_BF16 both products take bf16 operands and sum in f32; P is rounded to bf16 on the way, its sum is
// not (as on GPUs). Without, everything after the load is f32.
#include "tutti/kernels/cpu/fill.h"
#include "tutti/kernels/cpu/isa/attention_tiles.h"

namespace tutti::kernels::TUTTI_ISA {

namespace {

// Keys of a tile: 64 were 2 % slower, 256 the same with twice the memory (bench/results/attention_cpu_zen4.md).
constexpr int64_t kKeys = 128;
constexpr float kInfinity = __builtin_inff();

// Blocks of rows that one task takes through the same tiles of K and V: what it costs to copy a tile out of strided
// rows is shared by four.
constexpr int64_t kTogether = 4;

template <class Word>
struct Tiles {
    Word *k, *v;               // (keys, D), (keys, D) interleaved
    float *s, *staged;         // (keys, rows): S^T, then P^T in place; (rows, D)
    Word* q[kTogether] = {};   // (D, rows) of each block
    float* o[kTogether] = {};  // (D, rows): O^T
};

int64_t words_of_slot(int64_t D) {
    return 2 * (round_up(kKeys * D, 16)) + kKeys * kRows + (2 * kTogether + 1) * kRows * D;
}
template <class Word>
Tiles<Word> tiles_of_slot(const View& workspace, int64_t slot, int64_t D) {
    Workspace space{workspace.as<float>() + slot * words_of_slot(D)};
    Tiles<Word> t;
    t.k = space.take<Word>(kKeys * D);
    t.v = space.take<Word>(kKeys * D);
    t.s = space.take<float>(kKeys * kRows);
    t.staged = space.take<float>(kRows * D);
    for (int64_t i = 0; i < kTogether; ++i) {
        t.q[i] = space.take<Word>(D * kRows);
        t.o[i] = space.take<float>(D * kRows);
    }
    return t;
}

// Running maximum and sum of each row's softmax, and by what the last tile scaled them.
struct Softmax {
    float maximum[kRows], sum[kRows], decay[kRows];
};

struct State {
    RowBlock block;
    Visible visible;
    Softmax softmax;
};

// S of lane vector v in row j of the tile, scaled; -infinity where the key is hidden.
template <bool masked>
[[gnu::always_inline]] inline Vec score(const float* s, int64_t j, int64_t v, float scale, const Visible& visible,
                                        int64_t first_key) {
    const Vec x = load(s + j * kRows + v * kLanes, Full{}) * broadcast(scale);
    if constexpr (!masked) return x;
    return select(visible.of(v, first_key + j), x, broadcast(-kInfinity));
}

[[gnu::always_inline]] inline void store_probabilities(Vec even, Vec, float* p, int64_t j, int64_t v) {
    store(even, p + j * kRows + v * kLanes, Full{});
}
[[gnu::always_inline]] inline void store_probabilities(Vec even, Vec odd, Pair* p, int64_t j, int64_t v) {
    store_pairs(even, odd, p + j / 2 * kRows + v * kLanes);
}

// m' = max(m, max_j S_j);  P_j = exp(S_j - m');  sum' = sum exp(m - m') + sum_j P_j. P^T replaces S^T: pairs of rows
// j, j + 1 go to row j/2, which was read before.
template <bool masked, class T>
void update_softmax(float* s, int64_t keys, int64_t lane, int64_t width, float scale, const Visible& visible,
                    int64_t first_key, Softmax& softmax) {
    using Word = typename Operand<T>::Word;
    constexpr int64_t kPack = Operand<T>::kPack;
    for (int64_t v = lane / kLanes; v < (lane + width) / kLanes; ++v) {
        const Vec before = load(softmax.maximum + v * kLanes, Full{});
        Vec maximum = before;
        for (int64_t j = 0; j < keys; ++j) maximum = max(maximum, score<masked>(s, j, v, scale, visible, first_key));
        store(maximum, softmax.maximum + v * kLanes, Full{});
        // A row that has seen no key yet has maximum -infinity, and -infinity minus itself is no number.
        const Vec safe = max(broadcast(-1e38f), maximum);
        Vec sum = zero();
        const auto probability = [&](int64_t j) __attribute__((always_inline)) {
            const Vec p = exp(score<masked>(s, j, v, scale, visible, first_key) - safe);
            sum = sum + p;
            return p;
        };
        int64_t j = 0;
        for (; j + kPack <= keys; j += kPack) {
            const Vec even = probability(j);
            const Vec odd = kPack == 2 ? probability(j + 1) : even;
            store_probabilities(even, odd, reinterpret_cast<Word*>(s), j, v);
        }
        if (j < keys) store_probabilities(probability(j), zero(), reinterpret_cast<Word*>(s), j, v);
        const Vec decay = exp(before - safe);
        store(decay, softmax.decay + v * kLanes, Full{});
        store(fma(load(softmax.sum + v * kLanes, Full{}), decay, sum), softmax.sum + v * kLanes, Full{});
    }
}

void scale_columns(float* o, int64_t D, int64_t width, const float* factors) {
    for (int64_t v = 0; v < width; v += kLanes) {
        const Vec factor = load(factors + v, Full{});
        for (int64_t d = 0; d < D; ++d) {
            float* at = o + d * kRows + v;
            store(load(at, Full{}) * factor, at, Full{});
        }
    }
}

// o = O / sum;  lse = m + ln sum. A row that saw no key has sum 0: o = 0, lse = -infinity.
template <class T>
void finish(const AttentionForward& a, const State& state, int64_t D, float* o, float* staged) {
    const auto& [block, visible, softmax] = state;
    float inverse[kRows];
    for (int64_t r = 0; r < kRows; ++r) inverse[r] = softmax.sum[r] == 0 ? 0.0f : 1 / softmax.sum[r];
    scale_columns(o, D, block.width(), inverse);
    store_transposed<T>(block, o, D, staged, a.o);
    float* lse = a.lse.as<float>() + block.b * a.lse.strides[0];
    for (int64_t r = 0; r < block.count; ++r)
        lse[block.head(r) * a.lse.strides[1] + block.query(r) * a.lse.strides[2]] =
            softmax.sum[r] == 0 ? -kInfinity : softmax.maximum[r] + __builtin_logf(softmax.sum[r]);
}

// Takes lanes [lane, lane + width) of block i through a part of the tile that begins at key `first`.
template <bool masked, class T, class Word>
void attend_lanes(const Tiles<Word>& t, int64_t i, int64_t D, float scale, int64_t first, Keys part, int64_t lane,
                  int64_t width, State& state) {
    constexpr int64_t kPack = Operand<T>::kPack;
    const int64_t words = (D + kPack - 1) / kPack, skipped = part.first - first, keys = part.end - part.first;
    const Word* p = reinterpret_cast<const Word*>(t.s);
    float* o = t.o[i] + lane;
    // S^T = K Q^T
    tile_product(Left<Word>{t.k + skipped * words, words, 1}, Right<Word>{t.q[i] + lane, kRows},
                 Product{t.s + lane, kRows}, keys, width, words, false);
    update_softmax<masked, T>(t.s, keys, lane, width, scale, state.visible, part.first, state.softmax);
    // O^T = O^T exp(m - m') + V^T P^T
    if (first > 0) scale_columns(o, D, width, state.softmax.decay + lane);
    tile_product(Left<Word>{t.v + skipped / kPack * D, 1, D}, Right<Word>{p + lane, kRows}, Product{o, kRows}, D, width,
                 (keys + kPack - 1) / kPack, true);
}

// On an edge of what is seen a few lanes at a time, each what it sees: 8 keys too many per row instead of 32.
template <class T, class Word>
void attend_tile(const Tiles<Word>& t, int64_t i, int64_t D, float scale, Keys tile, State& state) {
    const int64_t width = state.block.width();
    if (holds(state.visible.all(), tile))
        return attend_lanes<false, T>(t, i, D, scale, tile.first, tile, 0, width, state);
    for (int64_t lane = 0; lane < width; lane += kStep) {
        const Keys part = part_of<T>(tile, state.visible.of_lanes(lane));
        if (part.first < part.end)
            attend_lanes<true, T>(t, i, D, scale, tile.first, part, lane, smaller(kStep, width - lane), state);
    }
}

// Blocks [first_block, first_block + blocks) of one key head.
template <class T>
void attend(const AttentionForward& a, const Sizes& s, int64_t head, int64_t first_block, int64_t blocks,
            int64_t slot) {
    using Word = typename Operand<T>::Word;
    const int64_t D = s.D, words = (D + Operand<T>::kPack - 1) / Operand<T>::kPack;
    const int64_t b = head / s.Hkv, kv_head = head % s.Hkv;
    const Tiles<Word> t = tiles_of_slot<Word>(a.workspace, slot, D);
    State states[kTogether];
    for (int64_t i = 0; i < blocks; ++i) {
        State& state = states[i];
        state.block = row_block(s, b, kv_head, first_block + i);
        state.visible = visible_keys(a, state.block, s.Tk);
        for (int64_t r = 0; r < kRows; ++r) state.softmax.maximum[r] = -kInfinity, state.softmax.sum[r] = 0;
        __builtin_memset(t.o[i], 0, static_cast<size_t>(D * kRows) * sizeof(float));
        stage_transposed<T>(state.block, a.q, D, reinterpret_cast<Word*>(t.staged), t.q[i]);
    }
    const int64_t end = states[blocks - 1].visible.any().end;
    // Tiles begin at multiples of kKeys, so that results do not depend on how many blocks go together.
    for (int64_t first = states[0].visible.any().first / kKeys * kKeys; first < end; first += kKeys) {
        const int64_t keys = smaller(kKeys, end - first);
        for (int64_t j = 0; j < keys; ++j)
            stage_row(row_of<const T>(a.k, b, first + j, kv_head), D, t.k + j * words, words);
        stage_interleaved([&](int64_t j) { return row_of<const T>(a.v, b, first + j, kv_head); }, keys, D, t.v, D);
        for (int64_t i = 0; i < blocks; ++i) {
            const Keys any = states[i].visible.any(), tile{first, smaller(first + keys, any.end)};
            if (any.first < tile.end && first < tile.end) attend_tile<T>(t, i, D, a.scale, tile, states[i]);
        }
    }
    for (int64_t i = 0; i < blocks; ++i) finish<T>(a, states[i], D, t.o[i], t.staged);
}

int64_t attention_workspace(const Stream& stream, const Shape& q, const Shape& k, bool backward) {
    const Sizes s = sizes_of(q.begin(), k.begin());
    return backward ? attention_backward_workspace(stream, s) : stream.threads * words_of_slot(s.D);
}

void attention_forward(const Stream& stream, const AttentionForward& a) {
    const Sizes s = sizes_of(a.q.shape.begin(), a.k.shape.begin());
    if (s.rows() <= kFewRows) return attend_few_rows(stream, a);
    const int64_t heads = s.B * s.Hkv, blocks = s.blocks();
    // Fewer together where tasks would be too few for the threads; the results are the same.
    const int64_t together = larger(1, smaller(kTogether, blocks * heads / (2 * stream.threads)));
    const int64_t tasks_of_head = (blocks + together - 1) / together;
    // Head by head, so that K and V stay in L2; within a head the long causal blocks first, so that the threads end
    // together.
    tasks_in_slots(stream, heads * tasks_of_head, [&](int64_t task, int64_t slot) {
        const int64_t first = (tasks_of_head - 1 - task % tasks_of_head) * together;
        with_type(a.q.dtype, [&](auto type) {
            attend<typename decltype(type)::type>(a, s, task / tasks_of_head, first, smaller(together, blocks - first),
                                                  slot);
        });
    });
}

}  // namespace

void fill_attention(KernelTable& table) {
    table.attention_workspace = attention_workspace;
    table.attention_forward = attention_forward;
    table.attention_backward = attention_backward;
}

}  // namespace tutti::kernels::TUTTI_ISA
