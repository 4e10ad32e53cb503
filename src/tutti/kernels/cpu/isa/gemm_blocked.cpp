// kernels/cpu/isa/gemm_blocked.cpp: our own matrix product, for every instruction set and type. bf16 is multiplied by
// AMX tiles or as pairs by AVX512_BF16. Computes in f32 for builds without oneDNN, for f16, for bf16 on machines that
// cannot multiply bf16, and where oneDNN is slow; cpu/gemm*.cpp chooses.
//
// After Goto and van de Geijn (2008), with the loops reordered so that c is written once: a task computes one block of
// c (rows, width of GemmBlocks), summed in f32 in the L2 over all of K, and stores the block after bias, old c
// and rounding. A K of at most GemmBlocks::depth words needs no such block: its sums go from registers to c. All
// threads first pack op(b) into panels (K, kPanel) that every task reads. a is read in place; if its type or size does
// not fit, a task converts the rows that it is about to read; a transposed a is packed beforehand, or converted by the
// task where c is narrow. A K larger than kPackedDepth is processed in pieces, between which the sums stay in the
// workspace. If c is one block high, as for a group of few rows, one task reads each panel of b: the task packs the
// panels that it reads, which then stay in the L2.
//
// The sum of an element is taken in the same order however c is cut into blocks: bits do not depend on threads.
#include "tutti/kernels/cpu/isa/gemm_few_rows.h"
#include "tutti/kernels/cpu/isa/gemm_pack.h"
#include "tutti/kernels/cpu/isa/parts.h"

namespace tutti::kernels::TUTTI_ISA {

namespace {

// Rows of op(a): the address of the first, and the distances between rows and between the words of a row, in bytes.
struct Rows {
    const char* data;
    int64_t row_bytes, word_bytes;
};

// Destination of sums: rows `row` floats apart. Its old values begin the sums, are added at the end, or are
// overwritten.
enum class Old : uint8_t { overwritten, begins, added };
struct Sums {
    float* data;
    int64_t row;
    Old old;
};

// Memory that is read soon.
struct Ahead {
    const char* data = nullptr;
    int64_t bytes = 0;
};

// c (R, kVectors) vectors [+]= a (R, words) b (words, kVectors); fetches `ahead` into the L2, a line every fourth word.
// kByWord: neighbours are the rows of a, not the words of a row.
template <int R, bool kByWord, class Word>
[[gnu::noinline]] void multiply_rows(Rows a, const Word* b, Sums c, int64_t words, Ahead ahead) {
    constexpr int V = kVectors;
    Vec sum[R][V];
#pragma GCC unroll 24
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v)
            sum[r][v] = c.old == Old::begins ? load(c.data + r * c.row + v * kLanes, Full{}) : zero();
    constexpr int64_t kBytes = sizeof(Word);
    const int64_t row_bytes = kByWord ? kBytes : a.row_bytes, word_bytes = kByWord ? a.word_bytes : kBytes;
    // One address register reaches three rows.
    const char* row[(R + 2) / 3];
#pragma GCC unroll 8
    for (int i = 0; i < (R + 2) / 3; ++i) row[i] = a.data + i * 3 * row_bytes;
    const char *next = ahead.data, *const end = ahead.data + ahead.bytes;
    for (; end - next > words / 4 * 64; next += 64) __builtin_prefetch(next, 0, 2);
    for (int64_t k = 0; k < words; ++k, b += V * kLanes) {
        if (k % 4 == 0 && next < end) {
            __builtin_prefetch(next, 0, 2);
            next += 64;
        }
        Vec right[V];
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) right[v] = load(b + v * kLanes, Full{});
#pragma GCC unroll 24
        for (int r = 0; r < R; ++r) {
            Word word;
            __builtin_memcpy(&word, row[r / 3] + r % 3 * row_bytes + k * word_bytes, sizeof word);
            const Vec left = broadcast(word);
#pragma GCC unroll 4
            for (int v = 0; v < V; ++v) sum[r][v] = multiply_add(left, right[v], sum[r][v], b);
        }
    }
#pragma GCC unroll 24
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) {
            float* at = c.data + r * c.row + v * kLanes;
            store(c.old == Old::added ? sum[r][v] + load(at, Full{}) : sum[r][v], at, Full{});
        }
}

template <int R, bool kByWord, class Word>
void multiply_at_most(int64_t rows, Rows a, const Word* b, Sums c, int64_t words, Ahead ahead) {
    if (rows == R) return multiply_rows<R, kByWord>(a, b, c, words, ahead);
    if constexpr (R > 1) multiply_at_most<R - 1, kByWord>(rows, a, b, c, words, ahead);
}

// Multiplies the pieces (kSumRows, kPanel) of a block: c (rows, kPanel) [+]= a (rows, words) b (words, kPanel), and
// fetches `ahead` into the L2. Sums are in memory after finish().
template <class Word>
struct Pieces {
    void multiply(int64_t rows, Rows a, const Word* b, Sums c, int64_t words, Ahead ahead) {
        constexpr int kMost = kSums / kVectors;
        a.word_bytes == sizeof(Word) ? multiply_at_most<kMost, false>(rows, a, b, c, words, ahead)
                                     : multiply_at_most<kMost, true>(rows, a, b, c, words, ahead);
    }
    void finish() {}
};

#if defined(TUTTI_ISA_AMX) || defined(TUTTI_ISA_AMX_EMULATED)
// Missing rows of a are taken as zeros.
template <>
struct Pieces<Pair> {
    void multiply(int64_t rows, Rows a, const Pair* b, Sums c, int64_t words, Ahead ahead) {
        alignas(64) Pair whole[kSumRows<Pair> * kBlockDepth<Pair>];
        if (rows < kSumRows<Pair>) {
            __builtin_memset(whole, 0, sizeof whole);
            const auto bytes = static_cast<size_t>(words) * sizeof(Pair);
            for (int64_t i = 0; i < rows; ++i) __builtin_memcpy(whole + i * words, a.data + i * a.row_bytes, bytes);
            a = {reinterpret_cast<const char*>(whole), static_cast<int64_t>(bytes), sizeof(Pair)};
        }
        tiles.multiply(reinterpret_cast<const Pair*>(a.data), a.row_bytes, b, kPanel<Pair>, c.data, c.row, words,
                       c.old == Old::begins, ahead.data, ahead.bytes);
    }
    void finish() { tiles.finish(); }

    TilePieces tiles;
};
#endif

// A block's part of both operands for some words: rows of op(a), and panels of op(b) from the block's first one.
template <class Word>
struct Operands {
    Rows a;
    Panels<Word> b;
    bool b_is_near;  // in the L2
};

// Every piece (kSumRows, kPanel) of a block, a panel after the other. operands_at(Range of words) finds the operands;
// sums_of(m, n, k, deep) says where the piece at row m, column n is summed for words [k, k + deep), deep <= depth;
// summed(m, n) follows the last words, but for tiles, which store sums later.
template <class Word, class OperandsAt, class SumsOf, class Summed>
void multiply_block(OperandsAt&& operands_at, int64_t rows, int64_t columns, int64_t words, int64_t depth,
                    SumsOf&& sums_of, Summed&& summed) {
    for (int64_t k = 0; k < words; k += depth) {
        const int64_t deep = smaller(depth, words - k);
        const Operands<Word> x = operands_at(Range{k, deep});
        Pieces<Word> pieces;
        const int64_t down = (rows + kSumRows<Word> - 1) / kSumRows<Word>;
        const int64_t share = deep * kPanel<Word> * static_cast<int64_t>(sizeof(Word)) / down;
        for (int64_t n = 0; n < columns; n += kPanel<Word>) {
            const Word* const panel = x.b.at(n / kPanel<Word>, 0);
            // The panel after this one; after the last one, the first of the next words. The processor's own
            // prefetching is too late: the first piece of a panel would wait for the L3.
            const bool ends = n + kPanel<Word> >= columns, fetches = !x.b_is_near && !(ends && k + deep >= words);
            const Word* const after = ends ? x.b.at(0, deep) : x.b.at(n / kPanel<Word> + 1, 0);
            const char* const next = reinterpret_cast<const char*>(after);
            for (int64_t m = 0; m < rows; m += kSumRows<Word>) {
                pieces.multiply(smaller(kSumRows<Word>, rows - m),
                                {x.a.data + m * x.a.row_bytes, x.a.row_bytes, x.a.word_bytes}, panel,
                                sums_of(m, n, k, deep), deep,
                                fetches ? Ahead{next + m / kSumRows<Word> * share, share} : Ahead{});
                if (k + deep == words) summed(m, n);
            }
        }
        pieces.finish();
    }
}

constexpr int64_t kRowsAhead = 4;  // rows of c that are fetched before they are written

inline void prefetch_row(const Gemm& g, int64_t row, Range n) {
    const int64_t element = size_of(g.c.dtype);
    const char* p = g.c.as<const char>() + (row * g.c.strides[0] + n.begin) * element;
    for (int64_t j = 0; j < n.size * element; j += 64) __builtin_prefetch(p + j, 1);
}

// finish(sum, at, part) takes every vector of sums, its bias added, to element `at` of c.
template <class Word, class Bias, class Finish>
void for_sums(const Gemm& g, Range m, Range n, const float* sums, Finish&& finish) {
    const Bias* bias = g.bias.as<const Bias>();
    const int64_t rows = round_up(m.size, kSumRows<Word>);
    for (int64_t i = 0; i < m.size; ++i) {
        if (i + kRowsAhead < m.size) prefetch_row(g, m.begin + i + kRowsAhead, n);
        const int64_t row = (m.begin + i) * g.c.strides[0] + n.begin;
        for (int64_t column = 0; column < n.size; column += kPanel<Word>) {
            const float* piece = sums + (column / kPanel<Word> * rows + i) * kPanel<Word> - column;
            for_vectors(column, smaller(n.size, column + kPanel<Word>), [&](int64_t j, auto part) {
                Vec sum = load(piece + j, part);
                if (bias != nullptr) sum = sum + load(bias + n.begin + j, part);
                finish(sum, row + j, part);
            });
        }
    }
}

template <class Word, class To, class Bias>
void write_plain(const Gemm& g, Range m, Range n, const float* sums) {
    To* const c = g.c.as<To>();
    for_sums<Word, Bias>(g, m, n, sums, [&](Vec sum, int64_t at, auto part) {
        if (g.accumulate) sum = sum + load(c + at, part);
        store(sum, c + at, part);
    });
}

template <class Word, class T>
void write_block(const Gemm& g, Range m, Range n, const float* sums) {
    const bool bias_is_f32 = g.bias.dtype == DType::f32, result_is_f32 = g.c.dtype == DType::f32;
    const auto with_bias = [&]<class Bias>(Type<Bias>) {
        result_is_f32 ? write_plain<Word, float, Bias>(g, m, n, sums) : write_plain<Word, T, Bias>(g, m, n, sums);
    };
    bias_is_f32 ? with_bias(Type<float>{}) : with_bias(Type<T>{});
}

template <class T>
void gemm_of_few_rows(const Stream& stream, const Gemm& g) {
    using Word = typename Operand<T>::Word;
    const int64_t M = size(g.c, 0), N = size(g.c, 1), K = size(g.a, 1);
    const int64_t panels = (N + kPanel<Word> - 1) / kPanel<Word>;
    parallel_for(stream, panels, row_grain(K * kPanel<Word>), [&](int64_t begin, int64_t end) {
        alignas(64) float sums[kFewRowsOfC * kPanel<Word>];
        for (int64_t n = begin * kPanel<Word>; n < smaller(N, end * kPanel<Word>); n += kPanel<Word>) {
            const Range width = {n, smaller(kPanel<Word>, N - n)};
            sum_few_rows<T>(g, n, width.size, sums, kPanel<Word>);
            write_block<Word, T>(g, {0, M}, width, sums);
        }
    });
}

// Whether the sums of columns n fill a panel and are what c holds: then they go there from registers.
template <class Word>
bool sums_fit(const Gemm& g, Range n) {
    return n.size >= kPanel<Word> && g.c.dtype == DType::f32 && g.bias.data == nullptr;
}

// Prefetches the part of c in the piece at (row, column) of block (m, n) during the last multiplications: of few words,
// reading and writing c is a large part of the time.
template <class Word>
void prefetch_piece(const Gemm& g, Range m, Range n, int64_t row, int64_t column) {
    const int64_t element = size_of(g.c.dtype), bytes = smaller(kPanel<Word>, n.size - column) * element;
    const char* p = g.c.as<const char>() + ((m.begin + row) * g.c.strides[0] + n.begin + column) * element;
    for (int64_t i = 0; i < smaller(kSumRows<Word>, m.size - row); ++i, p += g.c.strides[0] * element)
        for (int64_t j = 0; j < bytes; j += 64) __builtin_prefetch(p + j, 1, 2);
}

// A product with its plan and its parts of the workspace.
template <class T>
class BlockedGemm {
  public:
    BlockedGemm(const Stream& stream, const Gemm& g) : stream_(stream), g_(g), plan_(gemm_plan(kIsa, stream, g)) {
        const auto aligned = [](float* p) {
            return reinterpret_cast<float*>(round_up(reinterpret_cast<int64_t>(p), 64));
        };
        float* const packed_b = aligned(g.workspace.as<float>());
        float* const rows_of_a = aligned(packed_b + plan_.packed_b);
        packed_b_ = reinterpret_cast<Word*>(packed_b);
        rows_of_a_ = reinterpret_cast<Word*>(rows_of_a);
        sums_ = aligned(rows_of_a + plan_.rows_of_a);
    }

    void multiply() {
        if (plan_.M == 0 || plan_.N == 0) return;
        for (int64_t n = 0; n < plan_.N; n += plan_.columns) {
            const Range width = {n, smaller(plan_.columns, plan_.N - n)};
            for (int64_t m = 0; m < plan_.M; m += plan_.rows) {
                const Range height = {m, smaller(plan_.rows, plan_.M - m)};
                int64_t k = 0;
                do {
                    const Range deep = {k, smaller(plan_.depth, plan_.words - k)};
                    const bool is_packed = plan_.keeps_b ? m > 0 || g_.b_is_packed : m > 0 && !plan_.sums_wait;
                    if (!plan_.tasks_pack_b && !is_packed)
                        pack_b<T>(stream_, g_, plan_, width, deep, panels_of(width.begin, deep));
                    if (plan_.a == RowsOfA::packed) pack_a(height, deep);
                    multiply_blocks(height, width, deep);
                    k += plan_.depth;
                } while (k < plan_.words);
            }
        }
    }

  private:
    using Word = typename Operand<T>::Word;

    // Rows `height`, columns `width` of c, and the words of K that are multiplied for them.
    struct Block {
        Range height, width, words;
        int64_t row, column;  // of the first, among those that are packed together
        int64_t task, slot;   // the slot: the task's part of the workspace
        bool last;            // no words follow
    };

    Panels<Word> panels_of(int64_t first_column, Range k) const {
        const Panels<Word> kept{reinterpret_cast<Word*>(g_.packed_b.as<float>()), plan_.words};
        if (plan_.keeps_b) return {kept.at(first_column / kPanel<Word>, k.begin), kept.words};
        return {packed_b_, k.size};
    }

    // Packed rows lie piece by piece: what a block reads of a is in one place.
    Word* rows_of_piece(int64_t word) const { return rows_of_a_ + word / plan_.piece_depth * plan_.rows * plan_.a_row; }

    void pack_a(Range m, Range k) const {
        const int64_t down = (m.size + kRun - 1) / kRun;
        parallel_tasks(stream_, down * plan_.pieces, [&](int64_t i) {
            const int64_t row = i % down * kRun, word = i / down * plan_.piece_depth;
            if (word < k.size)
                pack_rows<T>(g_, plan_, {k.begin + word, smaller(plan_.piece_depth, k.size - word)}, m.begin + row,
                             smaller(kRun, m.size - row), rows_of_piece(word) + row * plan_.a_row);
        });
    }

    void multiply_blocks(Range m, Range n, Range k) const {
        const int64_t across = (n.size + plan_.block_columns - 1) / plan_.block_columns;
        const int64_t down = (m.size + plan_.block_rows - 1) / plan_.block_rows;
        const bool last = k.begin + k.size >= plan_.words;
        tasks_in_slots(stream_, across * down, [&](int64_t task, int64_t slot) {
            // Neighbours share the panels of b.
            const int64_t row = task % down * plan_.block_rows, column = task / down * plan_.block_columns;
            const Range height = {m.begin + row, smaller(plan_.block_rows, m.size - row)};
            const Range width = {n.begin + column, smaller(plan_.block_columns, n.size - column)};
            if (height.size <= 0 || width.size <= 0) return;
            sum_block({height, width, k, row, column, task, slot, last});
        });
    }

    Operands<Word> operands_of(const Block& block, Range part) const {
        const Range words = {block.words.begin + part.begin, part.size};
        return {rows_of(block, part, words), panels_of(block, part, words), plan_.tasks_pack_b};
    }

    Rows rows_of(const Block& block, Range part, Range words) const {
        if (plan_.a == RowsOfA::in_place)
            return {reinterpret_cast<const char*>(g_.a.as<const T>() + block.height.begin * g_.a.strides[0] +
                                                  words.begin * Operand<T>::kPack),
                    g_.a.strides[0] * static_cast<int64_t>(sizeof(T)), sizeof(Word)};
        const bool converts = plan_.a != RowsOfA::packed;
        Word* const at = converts ? rows_of_a_ + block.slot * plan_.converted_rows
                                  : rows_of_piece(part.begin) + block.row * plan_.a_row;
        if (converts) pack_rows<T>(g_, plan_, words, block.height.begin, block.height.size, at);
        constexpr auto kBytes = static_cast<int64_t>(sizeof(Word));
        return {reinterpret_cast<const char*>(at), plan_.a_row * kBytes, plan_.a_word * kBytes};
    }

    Panels<Word> panels_of(const Block& block, Range part, Range words) const {
        if (!plan_.tasks_pack_b) {
            const Panels<Word> all = panels_of(block.width.begin - block.column, block.words);
            return {all.at(block.column / kPanel<Word>, part.begin), all.words};
        }
        const Panels<Word> own{packed_b_ + block.slot * plan_.packed_b_of_task, words.size};
        pack_panels<T>(g_, plan_, words, {0, words.size}, block.width.begin, 0, panels_in<Word>(block.width.size), own);
        return own;
    }

    void sum_block(const Block& b) const {
        float* const sums = sums_ + (plan_.sums_wait ? b.task : b.slot) * plan_.block_size;
        alignas(64) float piece[kSumRows<Word> * kPanel<Word>];
        const auto in_place = [&](int64_t column) {
            return plan_.in_one_piece && sums_fit<Word>(g_, {column, b.width.size - column});
        };
        const int64_t whole_rows_of_block = round_up(b.height.size, kSumRows<Word>);
        const auto sums_of = [&](int64_t row, int64_t column, int64_t word, int64_t deep) {
            if (g_.accumulate && b.last && word + deep == b.words.size)
                prefetch_piece<Word>(g_, b.height, b.width, row, column);
            if (in_place(column))
                return Sums{g_.c.as<float>() + (b.height.begin + row) * g_.c.strides[0] + b.width.begin + column,
                            g_.c.strides[0], g_.accumulate ? Old::added : Old::overwritten};
            if (plan_.in_one_piece) return Sums{piece, kPanel<Word>, Old::overwritten};
            return Sums{sums + column * whole_rows_of_block + row * kPanel<Word>, kPanel<Word>,
                        b.words.begin + word > 0 ? Old::begins : Old::overwritten};
        };
        const auto summed = [&](int64_t row, int64_t column) {
            if (!plan_.in_one_piece || in_place(column)) return;
            const Range rows = {b.height.begin + row, smaller(kSumRows<Word>, b.height.size - row)};
            const Range columns = {b.width.begin + column, smaller(kPanel<Word>, b.width.size - column)};
            write_block<Word, T>(g_, rows, columns, piece);
        };
        if (b.words.size == 0) __builtin_memset(sums, 0, static_cast<size_t>(plan_.block_size) * sizeof(float));
        multiply_block<Word>([&](Range part) { return operands_of(b, part); }, b.height.size,
                             round_up(b.width.size, kPanel<Word>), b.words.size, plan_.piece_depth, sums_of, summed);
        if (b.last && !plan_.in_one_piece) write_block<Word, T>(g_, b.height, b.width, sums);
    }

    const Stream& stream_;
    const Gemm& g_;
    const GemmPlan plan_;
    Word *packed_b_, *rows_of_a_;
    float* sums_;
};

}  // namespace

void gemm(const Stream& stream, const Gemm& g) {
    with_type(g.a.dtype, [&]<class T>(Type<T>) {
        if (has_few_rows(g)) return gemm_of_few_rows<T>(stream, g);
        BlockedGemm<T>(stream, g).multiply();
    });
}

}  // namespace tutti::kernels::TUTTI_ISA
