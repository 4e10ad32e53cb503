// kernels/cpu/attention_plan.h: how attention is cut into tiles, and what it needs as workspace: the same for every
// instruction set, on any machine. The kernels (isa/attention.cpp, isa/attention_backward.cpp) lay the workspace out.
//
// attention_plan.cpp is compiled without an instruction set's flags. Files that are compiled with them include this
// header too, so no inline function stands here whose copy the linker could keep (cpu/isa.h).
#pragma once

#include "tutti/kernels/kernel_table.h"

namespace tutti::kernels::attention {

inline constexpr int64_t kRows = 64;   // query rows of a block: its Q^T, O^T and one tile of S^T share the L1
inline constexpr int64_t kChunk = 32;  // keys whose scores are made together, and stay in the L1 until they are used
// Keys of a tile of K and V, which a few blocks of rows use in turn. Of the backward: long sums of dQ; P and dS of the
// tile stay in the L2.
inline constexpr int64_t kKeys = 128;
// Blocks of rows that one task of the forward takes through the same tiles of K and V: what it costs to copy a tile out
// of strided rows is shared by eight.
inline constexpr int64_t kForwardTogether = 8;
// Blocks of rows that go through the same tile of keys in turn: the sums of a tile's dK and dV stay in the L2.
inline constexpr int64_t kBackwardTogether = 4;

struct Sizes {
    int64_t B, Tq, H, D, Tk, Hkv;
    int64_t group;     // heads that read one key head
    int64_t rows;      // query rows of a key head
    int64_t blocks;    // of them
    int64_t padded_D;  // what words and rows of a head dim are filled up to, at most
};
Sizes sizes_of(const Shape& q, const Shape& k);

// Floats that a thread of the forward works in.
int64_t forward_slot(int64_t padded_D);

// How the work of the backward is cut and where things lie in the workspace, in floats: a slot for each thread, then
// the sums of dK and dV. With one split, a task's sums are written out at its end and the slot's next task has them.
struct BackwardPlan {
    int64_t heads, splits, keys, padded_D;
    int64_t sums;  // dK and dV of one key head
    int64_t slot;
    int64_t workspace;
};
BackwardPlan backward_plan(const Stream& stream, const Sizes& s);

// The entry attention_workspace of all CPU tables.
int64_t workspace(const Stream& stream, const Shape& q, const Shape& k, bool backward);

}  // namespace tutti::kernels::attention
