// kernels/cpu/isa/gemm_pack.h: packs the operands of a product as words, in the order in which the product reads them:
// panels of op(b), and rows of op(a). Block sizes are those of cpu/gemm_plan.h.
#pragma once

#include "tutti/kernels/cpu/gemm_plan.h"
#include "tutti/kernels/cpu/isa/tile_product.h"

namespace tutti::kernels::TUTTI_ISA {

static_assert(constants_of(kIsa) == IsaConstants{.lanes = kLanes,
                                                 .vectors = kVectors,
                                                 .sums = kSums,
                                                 .fast_pairs = kFastPairs,
                                                 .tiles = kTiles,
                                                 .pair_unit = kUnit<Pair>},
              "cpu/gemm_plan.h must plan products with the constants of this instruction set");

template <class Word>
inline constexpr GemmBlocks kBlocks = gemm_blocks(constants_of(kIsa), __is_same(Word, Pair));

// Elements enter products as the words that the plan assumes.
static_assert(__is_same(Operand<bf16>::Word, Pair) == constants_of(kIsa).fast_pairs);
static_assert(Operand<bf16>::kPack == kBlocks<Operand<bf16>::Word>.pack);
static_assert(__is_same(Operand<float>::Word, float) && __is_same(Operand<f16>::Word, float));

template <class Word>
inline constexpr int64_t kPanel = kBlocks<Word>.panel;
template <class Word>
inline constexpr int64_t kSumRows = kBlocks<Word>.sum_rows;
template <class Word>
inline constexpr int64_t kBlockDepth = kBlocks<Word>.depth;

struct Range {
    int64_t begin, size;
};

// Copies `words` words of a row that has `left` elements left, and pads them with zeros.
template <class T>
void copy_row(const T* x, int64_t left, float* y, int64_t words) {
    const int64_t n = smaller(left, words);
    for_vectors(0, n, [&](int64_t i, auto part) { store(load(x + i, part), y + i, part); });
    for (int64_t i = larger(n, 0); i < words; ++i) y[i] = 0;
}
inline void copy_row(const bf16* x, int64_t left, Pair* y, int64_t words) {
    const int64_t bytes = larger(0, smaller(2 * left, 4 * words));
    __builtin_memcpy(y, x, static_cast<size_t>(bytes));
    __builtin_memset(reinterpret_cast<char*>(y) + bytes, 0, static_cast<size_t>(4 * words - bytes));
}

// y (width) = the words of row k of a matrix stored (K, n), zeros where it ends. A word spans rows k kPack, ...
template <class T>
void take_row(const T* x, int64_t stride, int64_t k, int64_t, int64_t width, float* y) {
    copy_row(x + k * stride, width, y, width);
}
inline void take_row(const bf16* x, int64_t stride, int64_t k, int64_t K, int64_t width, Pair* y) {
    const bf16* low = x + 2 * k * stride;
    const bool paired = 2 * k + 1 < K;
    int64_t i = 0;
    if (paired)
        for (; i + kLanes <= width; i += kLanes) interleave(low + i, low + stride + i, y + i);
    for (; i < width; ++i) y[i].bits = low[i].bits | (paired ? static_cast<uint32_t>(low[stride + i].bits) << 16 : 0u);
}

// Pieces that are staged in the L1 are read in the order of memory, in runs long enough for the prefetcher.
inline constexpr int64_t kRun = 256, kSquare = 16;  // words

// y (words, width) <- x (count, elements of K): rows of x become columns of y.
template <class T, class Word>
void pack_columns(const T* x, int64_t stride, int64_t count, int64_t left, int64_t words, Word* y, int64_t width) {
    alignas(64) Word staged[kSquare * kRun];
    for (int64_t i = 0; i < count; i += kSquare)
        for (int64_t k = 0; k < words; k += kRun) {
            const int64_t rows = smaller(kSquare, count - i), deep = smaller(kRun, words - k);
            for (int64_t r = 0; r < rows; ++r)
                copy_row(x + (i + r) * stride + k * Operand<T>::kPack, left - k * Operand<T>::kPack, staged + r * kRun,
                         deep);
            transpose_words(reinterpret_cast<const uint32_t*>(staged), kRun, rows, deep,
                            reinterpret_cast<uint32_t*>(y + k * width + i), width);
        }
}

// Panels of packed b: (words, kPanel) each, one after the other, `words` apart.
template <class Word>
struct Panels {
    Word* data;
    int64_t words;

    Word* at(int64_t panel, int64_t word) const { return data + (panel * words + word) * kPanel<Word>; }
};

template <class Word>
int64_t panels_in(int64_t columns) {
    return (columns + kPanel<Word> - 1) / kPanel<Word>;
}

// Panels [first, end) of op(b), columns n + panel * kPanel, words `part` of the packed words k.
template <class T, class Word>
void pack_panels(const Gemm& g, const GemmPlan& plan, Range k, Range part, int64_t n, int64_t first, int64_t end,
                 Panels<Word> y) {
    const T* b = g.b.as<const T>();
    const int64_t stride = g.b.strides[0], pack = Operand<T>::kPack, begin = k.begin + part.begin;
    const auto panel = [&](int64_t p) { return y.at(p, part.begin); };
    const auto columns = [&](int64_t p) { return smaller(kPanel<Word>, plan.N - n - p * kPanel<Word>); };
    if (columns(end - 1) < kPanel<Word>)
        __builtin_memset(panel(end - 1), 0, static_cast<size_t>(part.size * kPanel<Word>) * sizeof(Word));
    if (g.transpose_b) {
        for (int64_t p = first; p < end; ++p)
            pack_columns(b + (n + p * kPanel<Word>)*stride + begin * pack, stride, columns(p), plan.K - begin * pack,
                         part.size, panel(p), kPanel<Word>);
        return;
    }
    for (int64_t i = 0; i < part.size; ++i)
        for (int64_t p = first; p < end; ++p) {
            Word* row = panel(p) + i * kPanel<Word>;
            if ((begin + i) * pack < plan.K)
                take_row(b + n + p * kPanel<Word>, stride, begin + i, plan.K, columns(p), row);
            else
                __builtin_memset(row, 0, kPanel<Word> * sizeof(Word));
        }
}

// All panels of columns n of op(b), words k, by all threads. A transposed b is read panel by panel, any other row by
// row.
template <class T, class Word>
void pack_b(const Stream& stream, const Gemm& g, const GemmPlan& plan, Range n, Range k, Panels<Word> y) {
    const int64_t count = panels_in<Word>(n.size);
    if (g.transpose_b)
        parallel_tasks(stream, count, [&](int64_t i) {
            pack_panels<T>(g, plan, k, {0, k.size}, n.begin, i, i + 1, y);
        });
    else
        parallel_tasks(stream, (k.size + kSquare - 1) / kSquare, [&](int64_t i) {
            pack_panels<T>(g, plan, k, {i * kSquare, smaller(kSquare, k.size - i * kSquare)}, n.begin, 0, count, y);
        });
}

// Fetches word k of `width` columns of a matrix stored (K, n), which a task reads in runs too short for the prefetcher.
template <class T>
void prefetch_word(const T* x, int64_t stride, int64_t k, int64_t K, int64_t width) {
    for (int64_t row = k * Operand<T>::kPack; row < smaller((k + 1) * Operand<T>::kPack, K); ++row)
        fetch(x + row * stride, width);
}

// Rows [m, m + count) of op(a), words of k, at the distances of the plan. Of a transposed a that is packed, `count` is
// at most kRun.
template <class T, class Word>
void pack_rows(const Gemm& g, const GemmPlan& plan, Range k, int64_t m, int64_t count, Word* y) {
    const T* a = g.a.as<const T>();
    const int64_t stride = g.a.strides[0], pack = Operand<T>::kPack;
    if (!g.transpose_a) {
        const auto row = [&](int64_t i) { return a + (m + i) * stride + k.begin * pack; };
        for (int64_t i = 0; i < count; ++i) {
            fetch_ahead(row, i, count, k.size * pack);
            copy_row(row(i), plan.K - k.begin * pack, y + i * plan.a_row, k.size);
        }
        return;
    }
    if (plan.a == RowsOfA::by_word) {
        for (int64_t i = 0; i < k.size; ++i) {
            prefetch_word(a + m, stride, k.begin + i + kRowsFetched, plan.K, count);
            take_row(a + m, stride, k.begin + i, plan.K, count, y + i * plan.a_word);
        }
        return;
    }
    alignas(64) Word staged[kSquare * kRun];
    for (int64_t begin = 0; begin < k.size; begin += kSquare) {
        const int64_t deep = smaller(kSquare, k.size - begin);
        for (int64_t i = 0; i < deep; ++i)
            if ((k.begin + begin + i) * pack < plan.K)
                take_row(a + m, stride, k.begin + begin + i, plan.K, count, staged + i * kRun);
            else
                __builtin_memset(staged + i * kRun, 0, kRun * sizeof(Word));
        transpose_words(reinterpret_cast<const uint32_t*>(staged), kRun, deep, count,
                        reinterpret_cast<uint32_t*>(y + begin), plan.a_row);
    }
}

}  // namespace tutti::kernels::TUTTI_ISA
