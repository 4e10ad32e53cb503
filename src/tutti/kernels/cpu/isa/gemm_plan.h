// kernels/cpu/isa/gemm_plan.h: how one product is cut into blocks that stay in the caches, and what it needs as
// workspace. Used by gemm_pack.h and gemm_blocked.cpp.
#pragma once

#include "tutti/kernels/cpu/isa/tile_product.h"
#include "tutti/kernels/kernel_table.h"

namespace tutti::kernels::TUTTI_ISA {

// Of one multiplication: c (kSumRows, kPanel) in registers. With tiles four of them, two by two.
template <class Word>
inline constexpr bool kOnTiles = kTiles&& __is_same(Word, Pair);
template <class Word>
inline constexpr int64_t kPanel = kOnTiles<Word> ? 32 : kVectors* kLanes;
template <class Word>
inline constexpr int64_t kSumRows = kOnTiles<Word> ? 32 : kSums / kVectors;

// A block of c, one of a and one of b share the L2: 192 + 96 + 128 KB of 1 MB; with tiles 512 + 128 + 256 KB of 2 MB.
// A panel of b, 32 KB, and the rows of a that it meets share the L1; with tiles, which consume them ten times as fast,
// 16 KB. Zen 4, the one with AVX512_BF16 and no tiles, reads panels of twice the depth from its L2 as fast.
// Depths, here and below, are in words.
template <class Word>
inline constexpr int64_t kBlockRows = kOnTiles<Word> ? 256 : 192;
template <class Word>
inline constexpr int64_t kBlockWidth = kOnTiles<Word> ? 512 : 256;
template <class Word>
inline constexpr int64_t kBlockDepth = kLanes == 8 || (kFastPairs && !kTiles) ? 256 : 128;

inline constexpr int64_t kPackedDepth = 4096;
inline constexpr int64_t kPackedWords = 8 << 20;  // of a and of b each: 32 MiB

struct Range {
    int64_t begin, size;
};

// How the rows of op(a) are found: where they lie; converted by every task; all packed before.
enum class RowsOfA : uint8_t { in_place, converted, packed };

template <class T>
RowsOfA rows_of_a(const Gemm& g, int64_t K) {
    using Word = typename Operand<T>::Word;
    constexpr int64_t pack = Operand<T>::kPack;
    if (g.transpose_a) return RowsOfA::packed;
    return sizeof(T) * pack == sizeof(Word) && K % (pack * kUnit<Word>) == 0 ? RowsOfA::in_place : RowsOfA::converted;
}

// How one product is cut: by its shape, the types and the number of threads.
template <class T>
struct GemmPlan {
    using Word = typename Operand<T>::Word;
    int64_t M, N, K;
    int64_t words;    // of K, in whole units
    int64_t depth;    // words that are packed at a time
    int64_t columns;  // of c between two packings of b
    int64_t rows;     // of c between two packings of a
    bool keeps_b;     // packed, as Gemm::packed_b
    RowsOfA a;
    int64_t a_row;  // words of a converted or packed row, of which kBlockDepth are used: no power of two of bytes, as
                    // such rows share few sets of a cache
    int64_t block_rows;  // of a block of c
    int64_t block_columns;

    GemmPlan(const Stream& stream, const Gemm& g)
        : M(size(g.c, 0)),
          N(size(g.c, 1)),
          K(g.transpose_a ? size(g.a, 0) : size(g.a, 1)),
          words(Operand<T>::words(K)),
          depth(smaller(words, kPackedDepth)),
          columns(smaller(
              round_up(N, kPanel<Word>),
              larger(kBlockWidth<Word>, kPackedWords / larger(depth, 1) / kBlockWidth<Word> * kBlockWidth<Word>))),
          rows(M),
          keeps_b(g.packed_b.data != nullptr),
          a(rows_of_a<T>(g, K)),
          a_row(smaller(depth, kBlockDepth<Word>) + 16) {
        if (a == RowsOfA::packed && depth > 0)
            rows = smaller(rows, kPackedWords / packed_row() / kBlockRows<Word> * kBlockRows<Word>);
        if (depth < words && columns > 0)
            rows = smaller(rows, kPackedWords / columns / kBlockRows<Word> * kBlockRows<Word>);
        rows = larger(rows, smaller(M, kBlockRows<Word>));
        block_rows = share(rows, kBlockRows<Word>, kSumRows<Word>);
        block_columns = share(columns, kBlockWidth<Word>, kPanel<Word>);
        while (blocks() < 4 * stream.threads) {
            if (block_columns > 2 * kPanel<Word> && block_columns >= block_rows)
                block_columns = share(columns, block_columns / 2, kPanel<Word>);
            else if (block_rows > 48)
                block_rows = share(rows, block_rows / 2, kSumRows<Word>);
            else
                break;
        }
        // Few blocks: as many for every thread.
        int64_t parts = larger(1, down());
        while (parts * across() % stream.threads != 0 && parts * across() < 16 * stream.threads) ++parts;
        block_rows = larger(kSumRows<Word>, round_up((rows + parts - 1) / parts, kSumRows<Word>));
    }

    // n in equal parts of at most `most`, in whole units.
    static int64_t share(int64_t n, int64_t most, int64_t unit) {
        const int64_t parts = larger(1, (n + most - 1) / most);
        return larger(unit, round_up((n + parts - 1) / parts, unit));
    }
    int64_t down() const { return (rows + block_rows - 1) / block_rows; }
    int64_t across() const { return (columns + block_columns - 1) / block_columns; }
    int64_t blocks() const { return down() * across(); }
    bool sums_wait() const { return depth < words; }  // for the next piece of K
    int64_t block_size() const { return block_rows * block_columns; }

    int64_t slots(const Stream& stream) const { return smaller(blocks(), stream.threads); }
    int64_t pieces() const { return (depth + kBlockDepth<Word> - 1) / kBlockDepth<Word>; }  // of the packed words
    int64_t packed_row() const { return pieces() * a_row; }

    // A kept b, in words: all of it, whoever reads it.
    int64_t kept_b() const { return round_up(N, kPanel<Word>) * words; }

    // The workspace, in words: packed b, rows of a, sums.
    int64_t packed_b() const { return keeps_b ? 0 : columns * depth; }
    int64_t converted_rows() const { return block_rows * a_row; }  // of a task
    int64_t all_rows(const Stream& stream) const {
        if (a == RowsOfA::in_place) return 0;
        return a == RowsOfA::packed ? rows * packed_row() : slots(stream) * converted_rows();
    }
    int64_t sums(const Stream& stream) const { return (sums_wait() ? blocks() : slots(stream)) * block_size(); }
    int64_t workspace(const Stream& stream) const { return packed_b() + all_rows(stream) + sums(stream) + 3 * 16; }
};

}  // namespace tutti::kernels::TUTTI_ISA
