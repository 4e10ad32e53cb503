// kernels/cuda/block_order.h: which block of a grid computes which tile of attention, and so the order of the tiles.
#pragma once

#include <cstdint>

#include "tutti/base/error.h"
#include "tutti/base/host_device.h"

namespace tutti::kernels::cuda {

// The order in which blocks of a grid of one dimension begin. Heads of all sequences are the fastest index, so that the
// longest tiles of all of them begin first and no head's long tile is left for the end (a causal mask makes tiles of
// unequal length). Tiles of one head begin in their order, or from the last to the first. The number of heads that are
// computed side by side is limited so that their streamed operands fit half of Hopper's L2 cache.
class BlockOrder {
  public:
    // Blocks of `heads` heads of `sequences` sequences with `tiles` tiles each; `streamed`: bytes that the tiles of one
    // head read again and again. `last_first`: the last tiles are the longest.
    BlockOrder(int sequences, int heads, int64_t tiles, bool last_first, int64_t streamed)
        : heads_(heads), pairs_(sequences * heads), tiles_(static_cast<int>(tiles)), last_first_(last_first) {
        const int64_t fit = kCacheBytes / (streamed > 0 ? streamed : 1);
        side_by_side_ = static_cast<int>(fit < 1 ? 1 : fit < pairs_ ? fit : pairs_);
        check(int64_t{pairs_} * tiles_ < int64_t{1} << 31, "attention of ", sequences, " sequences with ", heads,
              " heads and ", tiles, " tiles of rows has more blocks than a grid of a GPU");
    }

    struct Place {
        int b, head, tile;
    };
    TUTTI_HOST_DEVICE Place at(unsigned block) const {
        const int index = static_cast<int>(block), of_section = side_by_side_ * tiles_, section = index / of_section;
        const int before = section * side_by_side_, left = pairs_ - before;
        const int width = left < side_by_side_ ? left : side_by_side_, rest = index - section * of_section;
        const int pair = before + rest % width, tile = rest / width;
        return {pair / heads_, pair % heads_, last_first_ ? tiles_ - 1 - tile : tile};
    }
    unsigned blocks() const { return static_cast<unsigned>(pairs_) * static_cast<unsigned>(tiles_); }

    static constexpr int64_t kCacheBytes = 25 << 20;

  private:
    int heads_, pairs_, tiles_, side_by_side_ = 1;
    bool last_first_;
};

}  // namespace tutti::kernels::cuda
