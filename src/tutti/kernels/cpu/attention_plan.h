// kernels/cpu/attention_plan.h: the tiling of attention and the size of its workspace, the same for every instruction
// set and on any machine. isa/attention.cpp and isa/attention_backward.cpp lay the workspace out.
//
// attention_plan.cpp is compiled without an instruction set's flags. Files that are compiled with them include this
// header too, so this header defines no inline function: the linker could keep the copy compiled with those flags
// (cpu/isa.h).
#pragma once

#include "tutti/kernels/kernel_table.h"

namespace tutti::kernels::attention {

inline constexpr int64_t kRows = 64;   // query rows of a block: its Q^T, O^T and one tile of S^T share the L1
inline constexpr int64_t kChunk = 32;  // keys whose scores are computed together and stay in the L1 until they are used
// Keys of a tile of K and V, which several blocks of rows use in turn. In the backward the sums of dQ are long, and P
// and dS of the tile stay in the L2.
inline constexpr int64_t kKeys = 128;
// Blocks of rows that one task of the forward takes through the same tiles of K and V, so that eight blocks share the
// cost of copying a tile out of strided rows.
inline constexpr int64_t kForwardTogether = 8;
// Blocks of rows that go through the same tile of keys in turn: the sums of a tile's dK and dV stay in the L2.
inline constexpr int64_t kBackwardTogether = 4;

struct Sizes {
    int64_t B, Tq, H, D, Tk, Hkv, Dv;
    int64_t group;      // heads that read one key head
    int64_t rows;       // query rows of a key head
    int64_t blocks;     // of query rows of a key head
    int64_t padded_D;   // head dim in words or rows, rounded up
    int64_t padded_Dv;  // at most that
};
Sizes sizes_of(const Shape& q, const Shape& v);

// Workspace of one thread of the forward, in floats.
int64_t forward_slot(int64_t padded_D);

// Division of the backward into tasks, and layout of its workspace in floats: one slot per thread, then the sums of dK
// and dV. With one split, a task writes its sums out when it ends, and the next task of the slot reuses their memory.
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
