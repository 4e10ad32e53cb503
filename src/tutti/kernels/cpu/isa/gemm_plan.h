// kernels/cpu/isa/gemm_plan.h: the constants of cpu/gemm_plan.h for the words of this instruction set. Used by
// gemm_pack.h and gemm_blocked.cpp.
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
              "cpu/gemm_plan.h sizes this instruction set's products by other constants");

template <class Word>
inline constexpr GemmBlocks kBlocks = gemm_blocks(constants_of(kIsa), __is_same(Word, Pair));

// Elements enter products as the words that the plan takes them for.
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

}  // namespace tutti::kernels::TUTTI_ISA
