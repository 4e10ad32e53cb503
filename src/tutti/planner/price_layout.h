// planner/price_layout.h: a run as prices see it: its stages from probes, and its numbers of ranks.
#pragma once

#include "tutti/parallel/flat_unit.h"
#include "tutti/planner/price.h"

namespace tutti::planner {

struct Pricer::Layout {
    static constexpr int64_t kMany = 1 << 20;
    const spec::RunSpec* run = nullptr;
    const LayerProbe* probe = nullptr;
    const schedule::Schedule* schedule = nullptr;
    const Layers* layers = nullptr;       // of all stages
    std::vector<const UnitProbe*> units;  // of the whole model, in the order of the forward
    std::vector<Position> ranks;
    double microbatches = 1, replicas = 1, shards = 1, expert_shards = 1;
    struct Sum {  // of LayerProbe::sums
        const SummedTogether* of;
        double shards, shard;        // shard: values of a rank's
        double gather, reduce, add;  // seconds of operations; add: over the ranks beyond the shards
        bool in_one;                 // ZeRO-0: `reduce` is over all ranks
    };
    std::vector<Sum> sums;
    // Bytes for sums over ranks that the probe has not; and where the rank shares its embedding or head with another.
    std::array<double, 2> beside = {};
    bool tied = false;      // the embedding's matrix is the head's, and both are on one rank
    MemoryByPurpose state;  // of kMany values

    double of_value(Purpose purpose) const { return static_cast<double>(state[purpose]) / kMany; }
};

// Whether the weight gradients of the run's schedule have actions of their own.
inline bool splits(const spec::ParallelSpec& p) { return p.pp > 1 && splits_backward(p.schedule); }

// Bytes of `values` in flat buffers of `shards` shards, per rank.
inline double shard_of(double values, double shards) {
    if (values == 0) return 0;
    return static_cast<double>(parallel::shard_size(static_cast<int64_t>(values), static_cast<int64_t>(shards)));
}

}  // namespace tutti::planner
