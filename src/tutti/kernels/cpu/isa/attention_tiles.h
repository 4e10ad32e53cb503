// kernels/cpu/isa/attention_tiles.h: shared parts of attention forward and backward: grouping of rows, their layout for
// tile_product.h, the mask, and division of the workspace.
//
// The queries of all heads that read one key head are one list of rows, r = i G + g (query i, head g of the group): a
// tile of K and V is then used by the whole group, and a single new token still fills G lanes. A block of rows lies
// across vector lanes, keys lie along the other dim, so that maxima and sums over keys need no horizontal step:
// S^T (keys, rows) = K Q^T.
//
// The left operand of every product is stored by rows, with words along the summed dim; the right operand has the
// elements of a word along the summed dim and the words of a row along the lanes. Tiles require this layout
// (tiles_amx.h), and vector instructions take it as well as any other. Sizes are padded with zeros to what tiles need.
#pragma once

#include "tutti/kernels/cpu/attention_plan.h"
#include "tutti/kernels/cpu/isa/tile_product.h"

namespace tutti::kernels::TUTTI_ISA {

using attention::kChunk;
using attention::kRows;
using attention::Sizes;
using attention::sizes_of;
inline constexpr int64_t kStep = kTiles ? 32 : 16;  // rows that are skipped together where they see no key of a chunk
// With at most this many rows per key head (a new token without grouped heads) most lanes would be empty:
// attention_decode.cpp.
inline constexpr int64_t kFewRows = 4;

// x is (B, T, H, D).
template <class T>
T* row_of(const View& x, int64_t b, int64_t t, int64_t h) {
    return x.as<T>() + b * x.strides[0] + t * x.strides[1] + h * x.strides[2];
}

// Rows [first, first + count) of key head g in batch b.
struct RowBlock {
    int64_t b, kv_head, first, count, group;
    int64_t query(int64_t r) const { return group == 1 ? first + r : (first + r) / group; }
    int64_t head(int64_t r) const { return group == 1 ? kv_head : kv_head * group + (first + r) % group; }
    int64_t width() const { return round_up(count, kStep); }  // lanes that products work on

    template <class T>
    T* row(const View& x, int64_t r) const {
        return row_of<T>(x, b, query(r), head(r));
    }
};
inline RowBlock row_block(const Sizes& s, int64_t b, int64_t kv_head, int64_t block) {
    return {b, kv_head, block * kRows, smaller(kRows, s.rows - block * kRows), s.group};
}

// Keys [first, end); none where end <= first.
struct Keys {
    int64_t first, end;
};
inline bool holds(Keys keys, Keys part) { return keys.first <= part.first && part.end <= keys.end; }
// Lanes [first, first + count) of a block.
struct Lanes {
    int64_t first, count;
    bool operator==(const Lanes&) const = default;
};

// Keys visible to query i of batch entry b; neither bound decreases as i grows.
inline Keys visible_keys(const AttentionMask& mask, int64_t Tk, int64_t b, int64_t i) {
    const int64_t last = i + mask.query_offset - mask.key_offset;  // the key at the query's own position
    Keys keys{0, mask.causal ? larger(0, smaller(Tk, last + 1)) : Tk};
    if (mask.window > 0) keys.first = larger(0, last - mask.window + 1);
    const View& document = mask.first_key;
    if (document.defined())
        keys.first = larger(
            keys.first, document.as<int32_t>()[b * document.strides[0] + i * document.strides[1]] - mask.key_offset);
    return keys;
}

// Keys visible to the rows of a block, as the distance from the middle of the keys, so that one comparison tests both
// bounds: row r sees key j when |j - middle[r]| <= reach[r]. Halves of positions are exact in float below 2^23.
struct Visible {
    float middle[kRows], minus_reach[kRows];
    Keys rows[kRows];  // lanes beyond the last row repeat it
    int64_t width;     // of the block

    Keys any() const { return {rows[0].first, rows[width - 1].end}; }  // keys that some row sees
    Keys all() const { return {rows[width - 1].first, rows[0].end}; }  // keys that every row sees
    // Lanes that see some of these keys.
    Lanes lanes(Keys keys) const {
        int64_t first = 0, end = width;
        while (first < end && rows[first + kStep - 1].end <= keys.first) first += kStep;
        while (first < end && rows[end - kStep].first >= keys.end) end -= kStep;
        return {first, end - first};
    }

    [[gnu::always_inline]] Mask of(int64_t v, int64_t key) const {
        const Vec distance = broadcast(static_cast<float>(key)) - load(middle + v * kLanes, Full{});
        return minus_abs(distance) >= load(minus_reach + v * kLanes, Full{});
    }
};
inline Visible visible_keys(const AttentionMask& mask, const RowBlock& block, int64_t Tk) {
    Visible v{};
    v.width = block.width();
    for (int64_t r = 0; r < kRows; ++r) {
        const Keys keys = visible_keys(mask, Tk, block.b, block.query(smaller(r, block.count - 1)));
        v.rows[r] = keys;
        v.middle[r] = 0.5f * static_cast<float>(keys.first + keys.end - 1);
        v.minus_reach[r] = 0.5f * static_cast<float>(keys.first - keys.end + 1);
    }
    return v;
}

// Calls body(keys, lanes) for the chunks of a tile; adjacent chunks that the same lanes see are passed in one call.
template <class Body>
void for_chunks_of_same_lanes(const Visible& visible, Keys tile, Body&& body) {
    const auto lanes_of = [&](int64_t first) { return visible.lanes({first, first + kChunk}); };
    for (int64_t first = tile.first, end; first < tile.end; first = end) {
        const Lanes lanes = lanes_of(first);
        for (end = first + kChunk; end < tile.end && lanes_of(end) == lanes;) end += kChunk;
        if (lanes.count > 0) body(Keys{first, end}, lanes);
    }
}

// y (D words in y_row) = one row of x as words, padded with zeros.
template <class T>
void stage_row(const T* x, int64_t D, float* y, int64_t y_row) {
    for_vectors(0, D, [&](int64_t i, auto part) { store(load(x + i, part), y + i, part); });
    for (int64_t i = D; i < y_row; ++i) y[i] = 0;
}
inline void stage_row(const bf16* x, int64_t D, Pair* y, int64_t y_row) {
    const auto* pairs = reinterpret_cast<const float*>(x);  // bits that pass through
    for_vectors(0, D / 2,
                [&](int64_t i, auto part) { store(load(pairs + i, part), reinterpret_cast<float*>(y) + i, part); });
    if (D % 2 == 1) y[D / 2].bits = x[D - 1].bits;
    for (int64_t i = (D + 1) / 2; i < y_row; ++i) y[i].bits = 0;
}

// y (ceil(count / kPack), y_row): rows row(0), row(1), ... with the elements of adjacent rows in one word.
template <class Row>
void stage_interleaved(Row&& row, int64_t count, int64_t D, float* y, int64_t y_row) {
    for (int64_t j = 0; j < count; ++j) {
        fetch_ahead(row, j, count, D);
        stage_row(row(j), D, y + j * y_row, y_row);
    }
}
template <class Row>
void stage_interleaved(Row&& row, int64_t count, int64_t D, Pair* y, int64_t y_row) {
    for (int64_t j = 0; j < count; j += 2, y += y_row) {
        const bf16 *low = row(j), *high = j + 1 < count ? row(j + 1) : nullptr;
        for (int64_t i = j; i < j + 2; ++i) fetch_ahead(row, i, count, D);
        int64_t d = 0;
        if (high != nullptr)
            for (; d + kLanes <= D; d += kLanes) interleave(low + d, high + d, y + d);
        for (; d < D; ++d) y[d].bits = low[d].bits | (high != nullptr ? static_cast<uint32_t>(high[d].bits) << 16 : 0u);
        for (; d < y_row; ++d) y[d].bits = 0;
    }
}

// y (words of D, kRows): the transposed rows of a block; lanes beyond its last row are 0.
template <class T, class Word>
void stage_transposed(const RowBlock& block, const View& x, int64_t D, Word* staged, Word* y) {
    const int64_t words = Operand<T>::words(D);
    const auto row = [&](int64_t r) { return block.row<const T>(x, r); };
    for (int64_t r = 0; r < block.count; ++r) {
        fetch_ahead(row, r, block.count, D);
        stage_row(row(r), D, staged + r * words, words);
    }
    if (block.count < kRows) __builtin_memset(y, 0, static_cast<size_t>(words * kRows) * sizeof(Word));
    transpose_words(reinterpret_cast<const uint32_t*>(staged), words, block.count, words,
                    reinterpret_cast<uint32_t*>(y), kRows);
}

// y (D, y_row words): row(0), ..., row(count - 1) as columns, zeros to the end of their last chunk.
template <class T, class Word, class Row>
void stage_columns(Row&& row, int64_t count, int64_t D, Word* staged, Word* y, int64_t y_row) {
    const int64_t words = (count + Operand<T>::kPack - 1) / Operand<T>::kPack;
    const int64_t filled = round_up(count, kChunk) / Operand<T>::kPack;
    stage_interleaved(row, count, D, staged, D);
    __builtin_memset(staged + words * D, 0, static_cast<size_t>((filled - words) * D) * sizeof(Word));
    transpose_words(reinterpret_cast<const uint32_t*>(staged), D, filled, D, reinterpret_cast<uint32_t*>(y), y_row);
}

// y = x, or y += x.
template <class T, class Part>
[[gnu::always_inline]] inline void put(Vec x, bool add, T* y, Part part) {
    store(add ? load(y, part) + x : x, y, part);
}

// x (row r of the block) = [x +] factor(r) sums^T (D, kRows), rounded once to the type of x.
template <class Factor>
void store_transposed(const RowBlock& block, const float* sums, int64_t D, Factor&& factor, float* staged,
                      const View& x, bool add) {
    transpose_words(reinterpret_cast<const uint32_t*>(sums), kRows, D, block.count, reinterpret_cast<uint32_t*>(staged),
                    D);
    with_type(x.dtype, [&](auto type) {
        const auto row = [&](int64_t r) { return block.row<typename decltype(type)::type>(x, r); };
        for (int64_t r = 0; r < block.count; ++r) {
            fetch_ahead(row, r, block.count, D);
            auto* y = row(r);
            const Vec f = broadcast(factor(r));
            for_vectors(0, D, [&](int64_t d, auto part) { put(load(staged + r * D + d, part) * f, add, y + d, part); });
        }
    });
}

// Divides the workspace into pieces, each beginning at a cache line.
struct Workspace {
    float* next;
    template <class Word>
    Word* take(int64_t words) {
        float* begin = next;
        next += round_up(words, 16);
        return reinterpret_cast<Word*>(begin);
    }
};

// S = cap tanh(scale S / cap) of the products S^T (kChunk, kRows) of a chunk, in these lanes.
inline void cap_scores(float* s, Lanes lanes, float scale, float cap) {
    const Vec most = broadcast(cap), factor = broadcast(scale / cap);
    for (int64_t j = 0; j < kChunk; ++j)
        for (int64_t lane = lanes.first; lane < lanes.first + lanes.count; lane += kLanes)
            store(most * tanh(load(s + j * kRows + lane, Full{}) * factor), s + j * kRows + lane, Full{});
}

void attend_few_rows(const Stream& stream, const AttentionForward& a);
void attention_backward(const Stream& stream, const AttentionBackward& a);

}  // namespace tutti::kernels::TUTTI_ISA
