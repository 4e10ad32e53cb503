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

// Parameters begin at multiples of this many values: 16 bytes in bf16, which vector instructions and the copy engine of
// a GPU ask for. A parameter of an odd size would else slow down all that come after it.
inline constexpr int64_t kParameterGrain = 8;

struct FlatLayout {
    struct Gap {
        int64_t begin, size;
    };
    std::vector<int64_t> offsets;  // of each parameter
    std::vector<Gap> gaps;         // padding, behind parameters and at the end
    int64_t padded = 0;            // size of the buffer: shards * shard_size; one shard ends with the last parameter
    int64_t shard_size = 0;
};

inline FlatLayout flat_layout(const std::vector<int64_t>& sizes, int64_t shards) {
    FlatLayout layout;
    int64_t end = 0;
    const auto pad_to = [&](int64_t grain) {
        const int64_t begin = end;
        end = (end + grain - 1) / grain * grain;
        if (end > begin) layout.gaps.push_back({begin, end - begin});
    };
    for (const int64_t size : sizes) {
        pad_to(kParameterGrain);
        layout.offsets.push_back(end);
        end += size;
    }
    if (shards > 1) pad_to(shards * kShardGrain);
    layout.padded = end;
    layout.shard_size = end / shards;
    return layout;
}

}  // namespace tutti::parallel
