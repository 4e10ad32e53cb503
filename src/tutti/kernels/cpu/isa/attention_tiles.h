// kernels/cpu/isa/attention_tiles.h: what the two attention kernels share: which rows belong together, how they are
// laid out for tile_product.h, the mask, and the workspace. Used by attention.cpp and attention_backward.cpp.
//
// The queries of all heads that read one key head are one list of rows, r = i G + g (query i, head g of the group): a
// tile of K and V is then used by the whole group, and a single new token still fills G lanes. A block of rows lies
// across vector lanes, keys lie along the other dim, so that maxima and sums over keys need no horizontal step:
// S^T (keys, rows) = K Q^T.
#pragma once

#include "tutti/kernels/cpu/isa/tile_product.h"
#include "tutti/kernels/kernel_table.h"

namespace tutti::kernels::TUTTI_ISA {

inline constexpr int64_t kRows = 64;  // query rows of a block: its Q^T, O^T and one tile of S^T share the L1
inline constexpr int64_t kStep = 16;  // rows that are cut off together on the diagonal
// So few rows per key head (a new token without grouped heads) leave most lanes empty: attention_decode.cpp.
inline constexpr int64_t kFewRows = 4;

// How elements enter a product, and how many of them are in one word.
template <class T>
struct Operand {
    using Word = float;
    static constexpr int64_t kPack = 1;
};
template <bool pairs>
struct Bf16Operand : Operand<float> {};
template <>
struct Bf16Operand<true> {
    using Word = Pair;
    static constexpr int64_t kPack = 2;
};
template <>
struct Operand<bf16> : Bf16Operand<kFastPairs> {};

// x is (B, T, H, D).
template <class T>
T* row_of(const View& x, int64_t b, int64_t t, int64_t h) {
    return x.as<T>() + b * x.strides[0] + t * x.strides[1] + h * x.strides[2];
}

struct Sizes {
    int64_t B, Tq, H, D, Tk, Hkv;
    int64_t group() const { return H / Hkv; }
    int64_t rows() const { return Tq * group(); }
    int64_t blocks() const { return (rows() + kRows - 1) / kRows; }
};
inline Sizes sizes_of(const int64_t* q, const int64_t* k) { return {q[0], q[1], q[2], q[3], k[1], k[2]}; }

// Rows [first, first + count) of key head g in batch b.
struct RowBlock {
    int64_t b, kv_head, first, count, group;
    int64_t query(int64_t r) const { return (first + r) / group; }
    int64_t head(int64_t r) const { return kv_head * group + (first + r) % group; }
    int64_t width() const { return round_up(count, kLanes); }  // lanes that products work on

    template <class T>
    T* row(const View& x, int64_t r) const {
        return row_of<T>(x, b, query(r), head(r));
    }
};
inline RowBlock row_block(const Sizes& s, int64_t b, int64_t kv_head, int64_t block) {
    return {b, kv_head, block * kRows, smaller(kRows, s.rows() - block * kRows), s.group()};
}

// Keys [first, end); none where end <= first.
struct Keys {
    int64_t first, end;
};
inline bool holds(Keys keys, Keys part) { return keys.first <= part.first && part.end <= keys.end; }
// What of a tile lies in `keys`, from a whole word on.
template <class T>
Keys part_of(Keys tile, Keys keys) {
    const int64_t skipped = larger(0, keys.first - tile.first) / Operand<T>::kPack * Operand<T>::kPack;
    return {tile.first + skipped, smaller(tile.end, keys.end)};
}

// What query i of batch entry b sees; neither bound falls as i grows.
template <class Attention>
Keys visible_keys(const Attention& a, int64_t Tk, int64_t b, int64_t i) {
    Keys keys{0, a.causal ? larger(0, smaller(Tk, i + a.query_offset + 1)) : Tk};
    if (a.window > 0) keys.first = larger(0, i + a.query_offset - a.window + 1);
    if (a.first_key.defined())
        keys.first = larger(
            keys.first, a.first_key.template as<int32_t>()[b * a.first_key.strides[0] + i * a.first_key.strides[1]]);
    return keys;
}

// What the rows of a block see, as the distance from the middle of their keys so that one comparison finds both bounds:
// row r sees key j when |j - middle[r]| <= reach[r]. Halves of positions are exact in float below 2^23.
struct Visible {
    float middle[kRows], minus_reach[kRows];
    Keys rows[kRows];  // lanes beyond the last row see what it sees
    int64_t width;     // of the block

    Keys any() const { return {rows[0].first, rows[width - 1].end}; }  // keys that some row sees
    Keys all() const { return {rows[width - 1].first, rows[0].end}; }  // keys that every row sees
    Keys of_lanes(int64_t lane) const { return {rows[lane].first, rows[lane + kStep - 1].end}; }

    [[gnu::always_inline]] Mask of(int64_t v, int64_t key) const {
        const Vec distance = broadcast(static_cast<float>(key)) - load(middle + v * kLanes, Full{});
        return minus_abs(distance) >= load(minus_reach + v * kLanes, Full{});
    }
};
template <class Attention>
Visible visible_keys(const Attention& a, const RowBlock& block, int64_t Tk) {
    Visible v{};
    v.width = block.width();
    for (int64_t r = 0; r < kRows; ++r) {
        const Keys keys = visible_keys(a, Tk, block.b, block.query(smaller(r, block.count - 1)));
        v.rows[r] = keys;
        v.middle[r] = 0.5f * static_cast<float>(keys.first + keys.end - 1);
        v.minus_reach[r] = 0.5f * static_cast<float>(keys.first - keys.end + 1);
    }
    return v;
}

// y (D words in y_row) = one row of x as words, filled up with zeros.
inline void stage_row(const float* x, int64_t D, float* y, int64_t y_row) {
    for_vectors(0, D, [&](int64_t i, auto part) { store(load(x + i, part), y + i, part); });
    for (int64_t i = D; i < y_row; ++i) y[i] = 0;
}
inline void stage_row(const bf16* x, int64_t D, float* y, int64_t y_row) {
    for_vectors(0, D, [&](int64_t i, auto part) { store(load(x + i, part), y + i, part); });
    for (int64_t i = D; i < y_row; ++i) y[i] = 0;
}
inline void stage_row(const bf16* x, int64_t D, Pair* y, int64_t y_row) {
    const size_t bytes = static_cast<size_t>(D) * sizeof(bf16);
    __builtin_memset(reinterpret_cast<char*>(y) + bytes, 0, static_cast<size_t>(y_row) * sizeof(Pair) - bytes);
    __builtin_memcpy(y, x, bytes);
}

// y (ceil(count / kPack), y_row): rows row(0), row(1), ... with neighbours along the rows in one word.
template <class Row>
void stage_interleaved(Row&& row, int64_t count, int64_t D, float* y, int64_t y_row) {
    for (int64_t j = 0; j < count; ++j) stage_row(row(j), D, y + j * y_row, y_row);
}
template <class Row>
void stage_interleaved(Row&& row, int64_t count, int64_t D, Pair* y, int64_t y_row) {
    for (int64_t j = 0; j < count; j += 2, y += y_row) {
        const bf16 *low = row(j), *high = j + 1 < count ? row(j + 1) : nullptr;
        int64_t d = 0;
        if (high != nullptr)
            for (; d + kLanes <= D; d += kLanes) interleave(low + d, high + d, y + d);
        for (; d < D; ++d) y[d].bits = low[d].bits | (high != nullptr ? static_cast<uint32_t>(high[d].bits) << 16 : 0u);
        for (; d < y_row; ++d) y[d].bits = 0;
    }
}

// y (D / kPack, kRows): the transposed rows of a block; lanes beyond its last row are 0.
template <class T, class Word>
void stage_transposed(const RowBlock& block, const View& x, int64_t D, Word* staged, Word* y) {
    const int64_t words = (D + Operand<T>::kPack - 1) / Operand<T>::kPack;
    for (int64_t r = 0; r < block.count; ++r) stage_row(block.row<const T>(x, r), D, staged + r * words, words);
    if (block.count < kRows) __builtin_memset(y, 0, static_cast<size_t>(words * kRows) * sizeof(Word));
    transpose_words(reinterpret_cast<const uint32_t*>(staged), words, block.count, words,
                    reinterpret_cast<uint32_t*>(y), kRows);
}

// x (rows of the block) = sums^T (D, kRows), rounded once.
template <class T>
void store_transposed(const RowBlock& block, const float* sums, int64_t D, float* staged, const View& x) {
    transpose_words(reinterpret_cast<const uint32_t*>(sums), kRows, D, block.count, reinterpret_cast<uint32_t*>(staged),
                    D);
    for (int64_t r = 0; r < block.count; ++r) {
        T* y = block.row<T>(x, r);
        for_vectors(0, D, [&](int64_t d, auto part) { store(load(staged + r * D + d, part), y + d, part); });
    }
}

// Hands out pieces of the workspace, each on a cache line of its own.
struct Workspace {
    float* next;
    template <class Word>
    Word* take(int64_t words) {
        float* begin = next;
        next += round_up(words, 16);
        return reinterpret_cast<Word*>(begin);
    }
};

void attend_few_rows(const Stream& stream, const AttentionForward& a);
int64_t attention_backward_workspace(const Stream& stream, const Sizes& s);
void attention_backward(const Stream& stream, const AttentionBackward& a);

}  // namespace tutti::kernels::TUTTI_ISA
