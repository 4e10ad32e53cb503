// kernels/cuda/sizes.h: sizes and abilities of the CUDA table, also in a build without CUDA, which may plan runs on
// GPUs.
#pragma once

#include <algorithm>

#include "tutti/base/ceil_div.h"
#include "tutti/base/host_device.h"
#include "tutti/kernels/attention_choice.h"
#include "tutti/kernels/kernel_table.h"

namespace tutti::kernels::cuda {

// Each chunk reads and writes the f32 gradient of the head once: for Llama 3's 128256 words 2.1 GB, in a millisecond.
inline constexpr int64_t kLossChunkBytes = 1 << 30;

// What the table's entries can do.
inline void fill_abilities(KernelTable& table) {
    table.fused_projections = true;
    table.norm_gradients_at_once = true;
    table.loss_chunk_bytes = kLossChunkBytes;
}

// Workspace of the backward of attention, in units of 4 bytes: D_i of each query row; for the Hopper kernel also dq in
// f32, by tiles of queries, and a counter for each tile. The size does not depend on the GPU, so that a plan made
// without a GPU counts what a run takes. Runs on other GPUs or in f32 therefore allocate memory that they do not use:
// twice the size of dq in bf16.
struct BackwardWorkspace {
    int64_t turns = 0, dq = 0, values = 0;  // offsets of the counters and of dq; the total

    // Sums of a tile of dq: 128 queries with 64 columns each, or 64 with 128.
    static constexpr int kTile = 8192;
    TUTTI_HOST_DEVICE static constexpr int queries(int D) { return D <= 64 ? 128 : 64; }

    explicit BackwardWorkspace(const Shape& q) {
        const auto aligned = [](int64_t count) { return round_up(count, 32); };  // to 128 bytes
        values = q[0] * q[1] * q[2];
        if (values == 0 || q[3] > 128 || q[3] % 8 != 0) return;
        const int rows = queries(static_cast<int>(q[3]));
        const int64_t tiles = q[0] * q[2] * ceil_div(q[1], rows);
        turns = aligned(values);
        dq = turns + aligned(tiles);
        values = dq + tiles * kTile;
    }
};

// A bound of cuDNN's workspace in units of 4 bytes; a graph that asks for more is not used. cudnn-frontend 1.32
// (node/scaled_dot_product_flash_attention.h): the deterministic backward keeps dP in 16 bits, by tiles of 64 queries
// and 128 keys; D_i and perhaps dq in f32; dk and dv of every query head; each part aligned.
inline int64_t cudnn_workspace(const Shape& q, const Shape& k, bool backward) {
    if (q.numel() == 0 || k.numel() == 0) return 0;
    constexpr int64_t kOther = 1 << 18;  // 1 MiB
    if (!backward) return kOther;
    const int64_t B = q[0], H = q[2], D = q[3], Tq = round_up(q[1], 64), Tk = round_up(k[1], 128);
    return B * H * (Tq * Tk / 2 + Tq + Tq * D + Tk * D) + kOther;
}

inline int64_t attention_workspace(const Stream& stream, const Shape& q, const Shape& k, bool backward) {
    const int64_t own = backward ? BackwardWorkspace(q).values : 0;
    const bool library = stream.attention != nullptr && stream.attention->asks_library();
    return library ? std::max(own, cudnn_workspace(q, k, backward)) : own;
}

// The chunked delta rule: a block for each key head of a sequence, or for a part of its value heads, whose tiles and
// states are in the workspace.
struct DeltaRuleSizes {
    static constexpr int kChunk = 64;  // tokens whose states are never made
    bool corrects;                     // as in DeltaRule
    int64_t B, T, Hk, Hv, Dk, Dv, chunks;
    int64_t heads, parts, group;  // value heads of a key head, the blocks that take them, and those of a block
    int64_t slot;                 // floats of a block

    DeltaRuleSizes(const Shape& key, const Shape& value, bool corrects_, bool backward)
        : corrects(corrects_), B(key[0]), T(key[1]), Hk(key[2]), Hv(value[2]), Dk(key[3]), Dv(value[3]) {
        heads = Hk == 0 ? 0 : Hv / Hk;
        parts = corrects ? 1 : parts_of(heads);
        group = heads / parts;
        chunks = ceil_div(T, kChunk);
        const int64_t state = group * Dk * Dv;
        slot = kChunk * (3 * Dk + 4 * Dv + 5 * kChunk + 9) + state;
        if (backward) slot += kChunk * (3 * Dk + 3 * Dv + 4 * kChunk) + (chunks + 1) * state;
    }
    int64_t blocks() const { return B * Hk * parts; }
    // Behind the slots: of each part the gradients of keys and queries, (T, 2, Dk).
    int64_t partials() const { return parts > 1 ? blocks() * T * 2 * Dk : 0; }

  private:
    // A block for each two heads of the scan of Mamba-2, where few key heads serve many: at most 16 parts, since the
    // backward holds the gradients of the keys for each.
    static int64_t parts_of(int64_t heads) {
        for (int64_t parts = 16; parts > 1; --parts)
            if (heads % parts == 0 && heads / parts >= 2) return parts;
        return 1;
    }
};
inline int64_t delta_rule_workspace(const Stream&, const Shape& key, const Shape& value, bool corrects, bool backward) {
    const DeltaRuleSizes s(key, value, corrects, backward);
    return s.blocks() * s.slot + (backward ? s.partials() : 0);
}

}  // namespace tutti::kernels::cuda
