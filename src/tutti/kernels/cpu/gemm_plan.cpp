#include "tutti/kernels/cpu/gemm_plan.h"

#include <algorithm>
#include <array>

#include "tutti/base/ceil_div.h"
#include "tutti/kernels/cpu/fill.h"

namespace tutti::kernels {

namespace {

constexpr int64_t kPackedDepth = 4096;
constexpr int64_t kPackedWords = 8 << 20;  // of a and of b each: 32 MiB

// By instruction set. Only bf16 goes through pairs.
consteval GemmBlocks blocks_of(const IsaConstants& isa, bool bf16) { return gemm_blocks(isa, bf16 && isa.fast_pairs); }
consteval std::array<GemmBlocks, 4> blocks_of(bool bf16) {
    static_assert(static_cast<int>(Isa::avx2) == 0 && static_cast<int>(Isa::amx) == 3);
    return {blocks_of(constants_of(Isa::avx2), bf16), blocks_of(constants_of(Isa::avx512), bf16),
            blocks_of(constants_of(Isa::avx512_bf16), bf16), blocks_of(constants_of(Isa::amx), bf16)};
}
constexpr std::array<GemmBlocks, 4> kBlocksOfBf16 = blocks_of(true), kBlocksOfOthers = blocks_of(false);

// n in equal parts of at most `most`, in whole units.
int64_t share(int64_t n, int64_t most, int64_t unit) {
    const int64_t parts = std::max<int64_t>(1, ceil_div(n, most));
    return std::max(unit, round_up(ceil_div(n, parts), unit));
}

RowsOfA rows_of_a(const Gemm& g, int64_t K, const GemmBlocks& b) {
    if (g.transpose_a) return g.c.shape[1] <= b.columns_by_word ? RowsOfA::by_word : RowsOfA::packed;
    const bool are_words = size_of(g.a.dtype) * b.pack == static_cast<int64_t>(sizeof(float));
    return are_words && K % (b.pack * b.unit) == 0 ? RowsOfA::in_place : RowsOfA::converted;
}

// Words of a converted or packed row of op(a), of which piece_depth are used.
int64_t row_of_a(const GemmPlan& p) { return p.piece_depth + 16; }

int64_t down(const GemmPlan& p) { return ceil_div(p.rows, p.block_rows); }
int64_t across(const GemmPlan& p) { return ceil_div(p.columns, p.block_columns); }
int64_t blocks(const GemmPlan& p) { return down(p) * across(p); }

// Sets how much of a and b is packed at a time.
void cut_into_packings(GemmPlan& p, const GemmBlocks& b) {
    p.depth = std::min(p.words, kPackedDepth);
    p.piece_depth = share(p.depth, b.depth, b.unit);
    p.pieces = ceil_div(p.depth, p.piece_depth);
    p.sums_wait = p.depth < p.words;
    p.in_one_piece = p.pieces == 1 && !p.sums_wait && !b.tiles;
    p.columns = std::min(round_up(p.N, b.panel),
                         std::max(b.width, kPackedWords / std::max<int64_t>(p.depth, 1) / b.width * b.width));
    p.rows = p.M;
    if (p.a == RowsOfA::packed && p.pieces > 0)
        p.rows = std::min(p.rows, kPackedWords / (p.pieces * row_of_a(p)) / b.rows * b.rows);
    if (p.sums_wait) p.rows = std::min(p.rows, kPackedWords / p.columns / b.rows * b.rows);
    p.rows = std::max(p.rows, std::min(p.M, b.rows));
}

// Whether c is cut into one row of blocks, as many for each thread, whose tasks pack the panels that they read: of a
// product of few rows on tiles, packing b into memory and reading it again is a good part.
bool cut_into_columns(GemmPlan& p, const GemmBlocks& b, int64_t threads) {
    const int64_t bytes_of_a = p.M * p.words * static_cast<int64_t>(sizeof(float));
    if (p.M > b.spanned_rows || bytes_of_a > b.spanned_bytes || p.keeps_b || p.sums_wait) return false;
    const auto is_uneven = [&](int64_t width) {
        const int64_t count = ceil_div(p.columns, width);
        return count < 2 * threads || (count < 16 * threads && count % threads != 0);
    };
    int64_t width = b.width / 2;
    while (width > 0 && is_uneven(width)) width -= b.panel;
    if (width < 2 * b.panel) return false;
    p.block_rows = round_up(p.rows, b.sum_rows);
    p.block_columns = width;
    p.block_size = p.block_rows * p.block_columns;
    return true;
}

// Sets the size of the blocks of c, small enough that every thread gets some.
void cut_into_blocks(GemmPlan& p, const GemmBlocks& b, int64_t threads) {
    if (cut_into_columns(p, b, threads)) return;
    p.block_rows = share(p.rows, b.rows, b.sum_rows);
    p.block_columns = share(p.columns, p.a == RowsOfA::by_word ? b.width_by_word : b.width, b.panel);
    while (blocks(p) < 4 * threads) {
        if (p.block_columns > 2 * b.panel && p.block_columns >= p.block_rows)
            p.block_columns = share(p.columns, p.block_columns / 2, b.panel);
        else if (p.block_rows > 48)
            p.block_rows = share(p.rows, p.block_rows / 2, b.sum_rows);
        else
            break;
    }
    // With few blocks, every thread gets the same number.
    int64_t parts = std::max<int64_t>(1, down(p));
    while (parts * across(p) % threads != 0 && parts * across(p) < 16 * threads) ++parts;
    p.block_rows = std::max(b.sum_rows, round_up(ceil_div(p.rows, parts), b.sum_rows));
    p.block_size = p.block_rows * p.block_columns;
}

void size_workspace(GemmPlan& p, int64_t threads) {
    const int64_t slots = std::min(blocks(p), threads);
    p.tasks_pack_b = !p.keeps_b && !p.sums_wait && p.rows == p.M && down(p) == 1;
    p.packed_b_of_task = p.block_columns * p.piece_depth;
    p.packed_b = p.keeps_b ? 0 : p.tasks_pack_b ? slots * p.packed_b_of_task : p.columns * p.depth;
    const bool by_word = p.a == RowsOfA::by_word;
    p.a_row = by_word ? 1 : row_of_a(p);
    p.a_word = by_word ? (ceil_div(p.block_rows, 16) | 1) * 16 : 1;
    p.converted_rows = by_word ? p.piece_depth * p.a_word : p.block_rows * p.a_row;
    switch (p.a) {
        case RowsOfA::in_place: p.rows_of_a = 0; break;
        case RowsOfA::by_word:
        case RowsOfA::converted: p.rows_of_a = slots * p.converted_rows; break;
        case RowsOfA::packed: p.rows_of_a = p.rows * p.pieces * p.a_row; break;
    }
    const int64_t sums = p.in_one_piece ? 0 : (p.sums_wait ? blocks(p) : slots) * p.block_size;
    p.workspace = p.packed_b + p.rows_of_a + sums + 3 * 16;  // each begins at a cache line
}

}  // namespace

int64_t whole_rows(const Gemm& g) { return g.whole_rows > 0 ? g.whole_rows : g.c.shape[0]; }

bool has_few_rows(const Gemm& g) { return g.transpose_b && !g.transpose_a && whole_rows(g) <= kFewRowsOfC; }

GemmPlan gemm_plan(Isa isa, const Stream& stream, const Gemm& g) {
    const GemmBlocks& b = (g.a.dtype == DType::bf16 ? kBlocksOfBf16 : kBlocksOfOthers)[static_cast<size_t>(isa)];
    GemmPlan p{.M = g.c.shape[0], .N = g.c.shape[1], .K = g.transpose_a ? g.a.shape[0] : g.a.shape[1]};
    p.words = round_up(ceil_div(p.K, b.pack), b.unit);
    p.keeps_b = g.packed_b.data != nullptr;
    p.kept_b = round_up(p.N, b.panel) * p.words;
    p.a = rows_of_a(g, p.K, b);
    if (p.M == 0 || p.N == 0) return p;
    cut_into_packings(p, b);
    cut_into_blocks(p, b, stream.threads);
    size_workspace(p, stream.threads);
    return p;
}

int64_t own_gemm_workspace(Isa isa, const Stream& stream, const Gemm& g) {
    return has_few_rows(g) ? 0 : gemm_plan(isa, stream, g).workspace;
}

int64_t own_gemm_packed_b(Isa isa, const Stream& stream, const Gemm& g) {
    return has_few_rows(g) ? 0 : gemm_plan(isa, stream, g).kept_b;
}

}  // namespace tutti::kernels
