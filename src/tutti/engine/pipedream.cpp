// engine/pipedream.cpp: a step of PipeDream (algorithms.h), on the executor's hooks around passes.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "tutti/base/to_size.h"
#include "tutti/engine/algorithms.h"
#include "tutti/spec/learning_rate.h"

namespace tutti::engine {

namespace {

using schedule::Op;

class PipeDream {
  public:
    // `targets`: of each microbatch, over all ranks.
    PipeDream(Engine& engine, double lr, const std::vector<int64_t>& targets)
        : engine_(engine), lr_(lr), targets_(targets), left_(static_cast<int64_t>(targets.size())) {
        const std::vector<pipeline::ModelChunk> chunks = engine.pipeline.chunks();
        check(chunks.size() == 1, "pipedream: a rank has one stage, not ", chunks.size());
        for (const autograd::Unit* unit : engine.model.units(chunks.front().span))
            parameters_.insert(parameters_.end(), unit->parameters.begin(), unit->parameters.end());
        engine.data_parallel->wait_for_weights();
        engine.data_parallel->begin_step(1);
    }

    // A backward uses the weights of its forward.
    void before(const schedule::Action& action) {
        if (action.op == Op::forward)
            seen_[action.microbatch] = newest_;
        else
            exchange(seen_.at(action.microbatch));
    }

    void after(const schedule::Action& action) {
        if (action.op == Op::forward) return;
        const int64_t version = seen_.at(action.microbatch);
        exchange(version);
        seen_.erase(action.microbatch);
        if (!is_seen(version)) stashed_.erase(version);
        if (is_seen(newest_)) {
            Version& copy = stashed_[newest_];
            for (const autograd::Parameter* p : parameters_)
                copy.push_back(ops::cast(engine_.ctx, p->value, p->value.dtype(), Purpose::weights));
        }
        update(targets_[to_size(action.microbatch)] > 0);
    }

  private:
    using Version = std::vector<Tensor>;  // the weights of the rank, in the order of `parameters_`

    bool is_seen(int64_t version) const {
        return std::any_of(seen_.begin(), seen_.end(), [&](const auto& seen) { return seen.second == version; });
    }
    // Swaps the weights in use with a version, unless that is the newest.
    void exchange(int64_t version) {
        const auto old = stashed_.find(version);
        if (old == stashed_.end()) return;
        for (size_t i = 0; i < parameters_.size(); ++i) std::swap(parameters_[i]->value, old->second[i]);
    }
    // Without a target there is nothing to learn: neither decay nor momentum changes a weight, as in may_update().
    void update(bool has_targets) {
        engine_.data_parallel->finish_gradients();
        if (has_targets) engine_.optimizer.step(lr_, 1);
        engine_.data_parallel->all_gather_weights();
        engine_.data_parallel->wait_for_weights();
        ++newest_;
        if (--left_ > 0) engine_.data_parallel->begin_step(1);
    }

    Engine& engine_;
    double lr_;
    const std::vector<int64_t>& targets_;
    int64_t left_;  // updates of the step
    std::vector<autograd::Parameter*> parameters_;
    int64_t newest_ = 0;                  // version: updates so far in the step
    std::map<int, int64_t> seen_;         // by microbatch in flight: the version that its forward used
    std::map<int64_t, Version> stashed_;  // versions in use by a microbatch and no longer the newest
};

}  // namespace

bool is_asynchronous(const spec::RunSpec& run) { return run.parallel.schedule == "pipedream"; }

StepResult pipedream_step(Engine& s, int64_t step) {
    StepTrace trace(s.trace, *s.device, false, *s.data_parallel);
    StepResult r{.lr = spec::learning_rate(s.run, step)};
    if (s.batches->valid_tokens(step) == 0) {  // known before a stage updates by itself: as may_update()
        r.loss = std::numeric_limits<double>::quiet_NaN();
        return r;
    }
    std::vector<int64_t> targets;
    for (int64_t i = 0; i < microbatches_of(s.pipeline).front(); ++i)
        targets.push_back(s.batches->valid_tokens_of(step, i));
    PipeDream pipedream(s, r.lr, targets);
    // A microbatch's gradient is that of the mean of its own terms.
    const auto batch = [all = batches_of(s, step), &targets](int64_t index) {
        nn::Batch one = all(index);
        one.grad_scale = 1.0f / static_cast<float>(std::max<int64_t>(targets[to_size(index)], 1));
        return one;
    };
    run_passes(
        s, trace, batch, [&](const schedule::Action& a) { pipedream.before(a); },
        [&](const schedule::Action& a) { pipedream.after(a); });
    send_losses(s);
    measure(s, step, trace, r);
    check(std::isfinite(r.loss) && std::isfinite(r.grad_norm), "step ", step,
          ": loss or gradient is not finite, and pipedream has updated weights with it already; continue from a ",
          "checkpoint with a lower optimizer.lr");
    return r;
}

}  // namespace tutti::engine
