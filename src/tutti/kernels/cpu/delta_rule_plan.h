// kernels/cpu/delta_rule_plan.h: the sizes of the chunked delta rule and its workspace, the same for every instruction
// set and on any machine. isa/delta_rule.cpp lays the workspace out. No inline function: attention_plan.h says why.
#pragma once

#include "tutti/kernels/kernel_table.h"

namespace tutti::kernels::delta {

inline constexpr int64_t kChunk = 64;  // tokens whose states are never made: the chunk of the paper's own kernels
inline constexpr int64_t kBlock = 16;  // rows of a triangular system that are solved one by one

struct Plan {
    int64_t B, T, Hk, Hv, Dk, Dv;
    bool corrects;         // as in DeltaRule
    int64_t heads;         // value heads of a key head
    int64_t parts, group;  // in which tasks take them, and those of a part
    int64_t chunks;        // of a sequence
    int64_t row_k, row_v;  // floats of a row of keys and of values, rounded up
    int64_t state;         // floats of the states of a group
    int64_t slot;          // workspace of one thread, in floats
    int64_t partials;      // behind the slots: sums over the heads of each part, of the backward
};
Plan plan_of(const Shape& key, const Shape& value, bool corrects, bool backward);

// The entry delta_rule_workspace of all CPU tables.
int64_t workspace(const Stream& stream, const Shape& key, const Shape& value, bool corrects, bool backward);

}  // namespace tutti::kernels::delta
