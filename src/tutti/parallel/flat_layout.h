// parallel/flat_layout.h: how the parameters of one unit lie one after another in a flat buffer, and how it is cut into
// equal shards. Numbers only.
#pragma once

#include <cstdint>
#include <vector>

#include "tutti/kernels/kernel_table.h"

namespace tutti::parallel {

// Shards begin at multiples of this many values, so that the sums of blocks (sums_of_squares) are the same however many
// shards there are. A thousand ranks pad each buffer to a multiple of 1000 grains: 256 Ki values in 1 MiB of f32.
inline constexpr int64_t kShardGrain = kernels::kSumBlock;

struct FlatLayout {
    std::vector<int64_t> offsets;  // of each parameter
    int64_t values = 0;            // of all parameters
    int64_t padded = 0;            // size of the buffer: shards * shard_size; no padding when there is one shard
    int64_t shard_size = 0;
};

inline FlatLayout flat_layout(const std::vector<int64_t>& sizes, int64_t shards) {
    FlatLayout layout;
    for (int64_t size : sizes) {
        layout.offsets.push_back(layout.values);
        layout.values += size;
    }
    const int64_t grain = shards * kShardGrain;
    layout.padded = shards == 1 ? layout.values : (layout.values + grain - 1) / grain * grain;
    layout.shard_size = layout.padded / shards;
    return layout;
}

}  // namespace tutti::parallel
