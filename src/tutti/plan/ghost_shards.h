// plan/ghost_shards.h: parallel/data_parallel.h as sizes: takes and drops the buffers of units at the same moments, so
// that what sharding needs beside its shards is counted, not bounded. When DataParallel changes, this file changes with
// it; a test of train/ compares the two. Below: ghost_tape.h. memory.cpp runs it.
#pragma once

#include <vector>

#include "tutti/mesh/flat_layout.h"
#include "tutti/plan/ghost_tape.h"
#include "tutti/spec/run_spec.h"

namespace tutti::plan {

// The flat buffers of a run, one for each unit that owns parameters, and which of them each unit uses.
struct ShardedModel {
    std::vector<mesh::FlatLayout> layouts;
    std::vector<std::vector<size_t>> uses;   // by unit: layouts
    std::vector<std::vector<size_t>> users;  // by layout: units, in the order of the forward
};
ShardedModel sharded_model(const spec::ModelSpec& model, int64_t shards);

class GhostShards final : public GhostHooks {
  public:
    // What there is of the microbatches before: nothing, shards that the next are added to, or whole gradients.
    enum class Before : uint8_t { nothing, shards, gradients };
    // `element`: bytes of a weight. `workers` > 0: the rank is their parameter server.
    GhostShards(Ledger& ledger, const ShardedModel& model, int64_t zero, int64_t element, Before before,
                int64_t workers = 0);

    void before_forward(size_t unit) override;
    void after_forward(size_t unit) override;
    void before_backward(size_t unit) override;
    void gradients_ready(size_t unit) override;
    void after_backward(size_t unit) override;
    void finish_gradients();

  private:
    struct State {
        Ghost weights, gradients, shard, received;
        bool resting = false;
        bool reduced = false;
    };
    void take_weights(size_t state);
    void take_gradients(size_t state);
    void take_gradient_shard(size_t state);
    void acquire(size_t unit);
    void prefetch(size_t unit);
    void rest(size_t unit);
    void need_gradients(size_t unit);
    void start_reduction(size_t state);
    void finish_reduction(size_t state);

    static constexpr size_t kNone = static_cast<size_t>(-1);
    Ledger& ledger_;
    const ShardedModel& model_;
    int64_t zero_, element_, workers_;
    std::vector<State> states_;
    size_t in_flight_ = kNone;
    bool backward_ = false;
};

}  // namespace tutti::plan
