#include "tutti/engine/pipedream.h"

#include <algorithm>
#include <utility>

namespace tutti::engine {

using schedule::Op;

PipeDream::PipeDream(Engine& engine, double lr) : engine_(engine), lr_(lr) {
    const std::vector<pipeline::Chunk> chunks = engine.pipeline.chunks();
    check(chunks.size() == 1, "pipedream: a rank has one stage, not ", chunks.size());
    left_ = chunks.front().microbatches;
    for (const autograd::Unit* unit : engine.model.units(chunks.front().span))
        parameters_.insert(parameters_.end(), unit->parameters.begin(), unit->parameters.end());
    engine.data_parallel->wait_for_weights();
    engine.data_parallel->begin_step(1);
}

void PipeDream::before(const schedule::Action& action) {
    if (action.op == Op::forward) {
        seen_[action.microbatch] = newest_;
        return;
    }
    const auto old = stashed_.find(seen_.at(action.microbatch));
    if (old != stashed_.end()) exchange(old->second);
}

void PipeDream::after(const schedule::Action& action) {
    if (action.op == Op::forward) return;
    const int64_t version = seen_.at(action.microbatch);
    const auto old = stashed_.find(version);
    if (old != stashed_.end()) exchange(old->second);
    seen_.erase(action.microbatch);
    const auto is_seen = [&](int64_t v) {
        return std::any_of(seen_.begin(), seen_.end(), [v](const auto& seen) { return seen.second == v; });
    };
    if (!is_seen(version)) stashed_.erase(version);
    if (is_seen(newest_)) {
        Version& copy = stashed_[newest_];
        for (const autograd::Parameter* p : parameters_)
            copy.push_back(ops::cast(engine_.ctx, p->value, p->value.dtype(), Purpose::weights));
    }
    update();
}

// Swaps the weights in use with a stashed version.
void PipeDream::exchange(Version& version) {
    for (size_t i = 0; i < parameters_.size(); ++i) std::swap(parameters_[i]->value, version[i]);
}

void PipeDream::update() {
    engine_.data_parallel->finish_gradients();
    engine_.optimizer.step(lr_, 1);
    engine_.data_parallel->all_gather_weights();
    engine_.data_parallel->wait_for_weights();
    ++newest_;
    if (--left_ > 0) engine_.data_parallel->begin_step(1);
}

}  // namespace tutti::engine
