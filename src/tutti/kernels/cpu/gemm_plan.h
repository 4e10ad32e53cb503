// kernels/cpu/gemm_plan.h: the blocking of our own product (isa/gemm_blocked.cpp) for the caches, and the size of its
// workspace, for any instruction set on any machine: a plan may be made for another machine.
//
// gemm_plan.cpp is compiled without an instruction set's flags. Files that are compiled with them include this header
// too, so the functions here are `consteval`: the linker could keep the copy of an inline function that was compiled
// with those flags (cpu/isa.h).
#pragma once

#include "tutti/kernels/kernel_table.h"

namespace tutti::kernels {

// The properties of an instruction set that decide the blocking. isa/gemm_pack.h asserts that they match the kernels.
struct IsaConstants {
    int64_t lanes;            // floats of a vector
    int64_t vectors;          // in a row of sums in registers
    int64_t sums;             // vectors of sums in registers
    bool fast_pairs = false;  // bf16 is multiplied as pairs, two elements in a 32-bit word
    bool tiles = false;       // pairs are multiplied by AMX tiles
    int64_t pair_unit = 1;    // pairs of a row are padded to a multiple of this
    bool operator==(const IsaConstants&) const = default;
};

consteval IsaConstants constants_of(Isa isa) {
    switch (isa) {
        case Isa::avx2: return {.lanes = 8, .vectors = 2, .sums = 12};
        case Isa::avx512: return {.lanes = 16, .vectors = 4, .sums = 24};
        case Isa::avx512_bf16: return {.lanes = 16, .vectors = 4, .sums = 24, .fast_pairs = true};
        case Isa::amx:
            return {.lanes = 16, .vectors = 4, .sums = 24, .fast_pairs = true, .tiles = true, .pair_unit = 16};
    }
    return {};
}

// Block sizes of a product whose operands are words of one kind: floats, or pairs of bf16. Depths, here and below, are
// in words.
struct GemmBlocks {
    bool tiles;
    int64_t pack;  // elements of a word
    int64_t unit;  // words of a row are padded to a multiple of this
    // One multiplication: c (sum_rows, panel) in registers; with tiles, four of them, two by two.
    int64_t sum_rows, panel;
    // With vectors, a panel of b (64 KB with AVX2, 256 KB with AVX-512) stays in the L2, which gives its words as fast
    // as they are multiplied; so does a block of c, 48 or 192 KB, beside the next panel, and rows of a pass through.
    // With tiles, which consume panels ten times as fast, a block of c, one of a and one of b share the L2 (512 + 128 +
    // 256 KB of 2 MB), and a panel of b and the rows of a that multiply it the L1. Wide blocks convert a less often.
    int64_t rows, width, depth;
    // Up to these rows and bytes of a, which then share the L2 with half of the width, one block has all rows of c.
    int64_t spanned_rows, spanned_bytes;
    // Up to so many columns of c, tasks convert their rows of a transposed a, for blocks of the width beside.
    // Packing a beforehand passes it through memory, which a wider c repays.
    int64_t columns_by_word, width_by_word;
};

consteval GemmBlocks gemm_blocks(const IsaConstants& isa, bool pairs) {
    const bool tiles = pairs && isa.tiles;
    const bool wide = isa.lanes == 16 && (isa.tiles || !isa.fast_pairs);
    return {.tiles = tiles,
            .pack = pairs ? 2 : 1,
            .unit = pairs ? isa.pair_unit : 1,
            .sum_rows = tiles ? 32 : isa.sums / isa.vectors,
            .panel = tiles ? 32 : isa.vectors * isa.lanes,
            .rows = tiles            ? 256
                    : isa.lanes == 8 ? 48
                    : wide           ? 96
                                     : 192,
            .width = wide ? 512 : 256,
            .depth = tiles ? 256 : 1024,
            .spanned_rows = tiles ? 512 : 0,
            .spanned_bytes = tiles ? 3 << 19 : 0,
            .columns_by_word = isa.lanes == 8 || tiles ? 0 : 1536,
            .width_by_word = 1024};
}

// The rows of op(a) that a task reads: in place; converted by the task itself; packed by all threads beforehand; or, of
// a transposed a, converted by the task in the order of memory: word after word, each of all rows.
enum class RowsOfA : uint8_t { in_place, converted, packed, by_word };

// The blocking of one product, from its shape, its types and the number of threads.
struct GemmPlan {
    int64_t M, N, K;
    int64_t words;        // length of K, in whole units
    int64_t depth;        // words of K that are packed at a time
    int64_t piece_depth;  // words of K that are multiplied at a time: equal shares, of GemmBlocks::depth at most
    int64_t pieces;       // of the packed depth
    int64_t columns;      // of c between two packings of b
    int64_t rows;         // of c between two packings of a
    bool keeps_b;         // packed, as Gemm::packed_b
    bool tasks_pack_b;    // each task packs its own panels: one block of rows reads them, from the L2
    bool sums_wait;       // in the workspace, between two packings along K
    bool in_one_piece;    // all of K is multiplied at once: sums need no block in the workspace
    RowsOfA a;
    // Of a converted or packed op(a): the distance between rows and the one between words of a row, in words. The
    // greater is no power of two of bytes, as such rows share few sets of a cache.
    int64_t a_row, a_word;
    int64_t block_rows, block_columns;  // of a block of c
    int64_t block_size;                 // sums of a block
    int64_t converted_rows;             // a task's rows of a, in words
    int64_t packed_b_of_task;           // words of a task's panels

    int64_t kept_b;  // words of the whole packed b
    // Sizes in words: packed b, rows of a, and the whole workspace with the sums.
    int64_t packed_b, rows_of_a, workspace;
};
GemmPlan gemm_plan(Isa isa, const Stream& stream, const Gemm& g);

// Rows of the whole product, of which c may be a block. Choices that depend on the number of rows use this number, so
// all blocks of a product make the same choices; under the same choices, neither our own product nor oneDNN's with
// AVX-512 changes the order of an element's sum with the number of rows (with AVX2, oneDNN's does).
int64_t whole_rows(const Gemm& g);

// Whether our own product reads a transposed b in place (kFewRowsOfC): then it needs neither a plan nor a workspace.
bool has_few_rows(const Gemm& g);

// Sizes for our own product, in f32 values: the entries gemm_workspace and gemm_packed_b of the table.
int64_t own_gemm_workspace(Isa isa, const Stream& stream, const Gemm& g);
int64_t own_gemm_packed_b(Isa isa, const Stream& stream, const Gemm& g);

}  // namespace tutti::kernels
