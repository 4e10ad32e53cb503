#include "tutti/plan/ghost_shards.h"

#include <utility>

namespace tutti::plan {

ShardedModel sharded_model(const spec::ModelSpec& model, int64_t shards) {
    spec::ModelSpec m = model;
    const auto with_layers = [&](int64_t layers) {
        m.layers = layers;
        return spec::parameter_count(m);
    };
    const bool words = model.family != spec::Family::mlp;
    const int64_t positions = model.family == spec::Family::gpt2 ? model.max_positions : 0;
    const int64_t block = with_layers(2) - with_layers(1);
    const int64_t first = words ? (model.vocab + positions) * model.width : 0;
    const int64_t last = with_layers(1) - block - first;

    ShardedModel sharded;
    const auto units = static_cast<size_t>(model.layers) + 2;
    sharded.uses.resize(units);
    for (size_t u = 0; u < units; ++u) {
        const int64_t values = u == 0 ? first : u + 1 == units ? last : block;
        if (values == 0) continue;
        sharded.uses[u].push_back(sharded.layouts.size());
        sharded.layouts.push_back(mesh::flat_layout({values}, shards));
        sharded.users.push_back({u});
    }
    if (words && model.tie_embeddings) {
        sharded.uses.back().push_back(0);
        sharded.users.front().push_back(units - 1);
    }
    return sharded;
}

GhostShards::GhostShards(Ledger& ledger, const ShardedModel& model, int64_t zero, int64_t element, Before before,
                         int64_t workers)
    : ledger_(ledger), model_(model), zero_(zero), element_(element), workers_(workers), states_(model.layouts.size()) {
    for (size_t s = 0; s < states_.size(); ++s) {
        states_[s].reduced = before == Before::shards;
        if (before == Before::gradients) take_gradients(s);
        if (before == Before::shards) take_gradient_shard(s);
    }
}

// --- weights ---------------------------------------------------------------------------------------------------------

void GhostShards::take_weights(size_t state) {
    if (!states_[state].weights.defined())
        states_[state].weights = Ghost(ledger_, model_.layouts[state].padded * element_, Purpose::communication);
}

void GhostShards::acquire(size_t unit) {
    if (zero_ < 3) return;
    for (size_t s : model_.uses[unit]) states_[s].resting = false;
    for (State& state : states_)
        if (std::exchange(state.resting, false)) state.weights = {};
    prefetch(unit);
}

// An embedding, the first unit, reads no weights in its backward.
void GhostShards::prefetch(size_t unit) {
    if (zero_ < 3 || unit >= model_.uses.size() || (backward_ && unit == 0)) return;
    for (size_t s : model_.uses[unit]) {
        states_[s].resting = false;
        take_weights(s);
    }
}

void GhostShards::rest(size_t unit) {
    for (size_t s : model_.uses[unit]) {
        const std::vector<size_t>& users = model_.users[s];
        const size_t last_use = backward_ ? users.front() : users.back();
        const bool turns_round = !backward_ && users.size() > 1;
        if (unit == last_use && !turns_round) states_[s].resting = true;
    }
}

void GhostShards::before_forward(size_t unit) {
    acquire(unit);
    if (!backward_) prefetch(unit + 1);
    if (unit + 1 == model_.uses.size()) need_gradients(unit);
}

void GhostShards::after_forward(size_t unit) { rest(unit); }

void GhostShards::before_backward(size_t unit) {
    backward_ = true;
    acquire(unit);
    prefetch(unit - 1);  // of the first unit: none
    need_gradients(unit);
}

void GhostShards::after_backward(size_t unit) { rest(unit); }

// --- gradients -------------------------------------------------------------------------------------------------------

void GhostShards::need_gradients(size_t unit) {
    for (size_t s : model_.uses[unit]) take_gradients(s);
}

void GhostShards::take_gradients(size_t state) {
    if (!states_[state].gradients.defined())
        states_[state].gradients =
            Ghost(ledger_, model_.layouts[state].padded * 4, zero_ >= 2 ? Purpose::communication : Purpose::gradients);
}

// With ZeRO < 2 a part of the gradients.
void GhostShards::take_gradient_shard(size_t state) {
    if (zero_ >= 2 && !states_[state].shard.defined())
        states_[state].shard = Ghost(ledger_, model_.layouts[state].shard_size * 4, Purpose::gradients);
}

void GhostShards::gradients_ready(size_t unit) {
    for (size_t s : model_.uses[unit])
        if (model_.users[s].front() == unit) start_reduction(s);
}

void GhostShards::start_reduction(size_t s) {
    if (zero_ < 1 && workers_ == 0) return;
    if (in_flight_ != kNone) finish_reduction(in_flight_);
    if (workers_ > 0)  // each sends its gradients
        states_[s].received = Ghost(ledger_, workers_ * model_.layouts[s].values * 4, Purpose::communication);
    else if (states_[s].reduced)
        states_[s].received = Ghost(ledger_, model_.layouts[s].shard_size * 4, Purpose::communication);
    else
        take_gradient_shard(s);
    states_[s].reduced = true;
    in_flight_ = s;
}

void GhostShards::finish_reduction(size_t s) {
    in_flight_ = kNone;
    states_[s].received = {};
    if (zero_ >= 2) states_[s].gradients = {};
}

void GhostShards::finish_gradients() {
    if (in_flight_ != kNone) finish_reduction(in_flight_);
}

}  // namespace tutti::plan
