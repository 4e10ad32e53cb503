// planner/price_memory.cpp: bytes of the device at each position of a pipeline: state, and each pass of the schedule on
// top of what the microbatches keep.
#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <utility>

#include "tutti/base/to_size.h"
#include "tutti/planner/price_layout.h"
#include "tutti/planner/rules.h"

namespace tutti::planner {

// Weights, gradients and optimizer state.
Price Pricer::state_of(const Layout& l, std::span<const Stage* const> stages) const {
    const spec::RunSpec& run = *l.run;
    const spec::ParallelSpec& p = run.parallel;
    double whole = 0, sharded = 0;  // values of the rank: all, and its shards
    for (const Stage* stage : stages) {
        whole += stage->dense + stage->experts;
        sharded += shard_of(stage->dense, l.shards) + shard_of(stage->experts, l.expert_shards);
    }
    Price price;
    const double weights = l.of_value(Purpose::weights) * (p.zero >= 3 ? sharded : whole);
    const double owned = p.zero >= 1 ? sharded : whole;
    (run.offload.params ? price.offloaded : price.bytes) += weights;
    price.bytes += l.of_value(Purpose::gradients) * (p.zero >= 2 ? sharded : whole);
    (run.offload.optimizer ? price.offloaded : price.bytes) += l.of_value(Purpose::optimizer) * owned;
    price.saved = static_cast<double>(saved_bytes(l.state, run)) / Layout::kMany *
                  (p.zero >= 1 ? sharded : whole / (l.shards * l.replicas));
    return price;
}

void Pricer::set_transients(const Layout& l, Stage& stage) {
    using schedule::Op;
    for (const Op op : {Op::forward, Op::backward, Op::backward_input, Op::backward_weight})
        for (const bool after : {false, true})
            stage.transient[after ? 1 : 0][to_size(op)] = transient_of(l, stage, op, after);
}

double Pricer::most_beside(const Layout& l, const Stage& stage) {
    using schedule::Op;
    double most = -std::numeric_limits<double>::infinity();
    for (const Op op : {Op::forward, Op::backward, Op::backward_input, Op::backward_weight})
        most = std::max(most, transient_of(l, stage, op, false));
    return most;
}

Price Pricer::memory_of(const Layout& l, size_t rank) const {
    const std::vector<const Stage*> own = l.of_rank(rank);
    Price price = state_of(l, own);

    // Each action on top of what waits for its backward or its weight gradients, of the messages that have arrived, and
    // of those that are being sent (pipeline/executor.cpp): the output of a stage that is not the last, and gradients.
    double live = 0, most = 0, waiting = 0, most_waiting = 0;
    bool after_backward = false;
    std::deque<std::pair<int, schedule::Op>> sent;
    const double hidden = l.probe->hidden;
    const auto send = [&](const schedule::Action& action) {
        constexpr std::ptrdiff_t kOfChannel = 2, kOfRank = 16;
        const std::pair channel(action.stage, action.op);
        const bool is_full = std::count(sent.begin(), sent.end(), channel) == kOfChannel;
        if (is_full || std::ssize(sent) == kOfRank) {
            sent.erase(is_full ? std::find(sent.begin(), sent.end(), channel) : sent.begin());
            live -= hidden;
        }
        sent.push_back(channel);
    };
    for (const schedule::Action& action : l.schedule->programs[rank]) {
        using schedule::Op;
        if (schedule::is_message(action.op)) {
            if (schedule::is_send(action.op))
                send(action);
            else
                live += hidden;
            continue;
        }
        double beside = 0;
        for (const schedule::Action& part : schedule::Parts(action)) {
            const Stage& stage = l.stages[to_size(part.stage)];
            if (part.op == Op::forward) {
                live += stage.kept - (stage.is_first ? 0 : hidden);  // the input is there
                waiting += stage.offloaded;
            }
            beside = std::max(beside, stage.transient[after_backward ? 1 : 0][to_size(part.op)]);
        }
        most = std::max(most, live + beside);
        most_waiting = std::max(most_waiting, waiting);
        after_backward = action.op == Op::backward || action.op == Op::backward_weight ||
                         (after_backward && action.op == Op::backward_input);
        for (const schedule::Action& part : schedule::Parts(action)) {
            const Stage& stage = l.stages[to_size(part.stage)];
            const bool ends = part.op == Op::backward || part.op == Op::backward_input;
            if (ends && !stage.is_first) live += hidden;  // the gradient of the input
            if (part.op == Op::backward) live -= stage.kept;
            if (part.op == Op::backward_input) live -= stage.kept - stage.kept_for_weight;
            if (part.op == Op::backward_weight) live -= stage.kept_for_weight;
            if (ends) waiting -= stage.offloaded;
        }
    }
    price.offloaded += most_waiting;
    price.bytes += most + static_cast<double>(target_.device.workspace_bytes);
    return price;
}

// Bytes of a pass over a stage at its fullest moment, above what all microbatches keep, its own with them. `after`: the
// rank's pass before was a backward, whose last reductions are in flight.
double Pricer::transient_of(const Layout& l, const Stage& stage, schedule::Op op, bool after) {
    using schedule::Op;
    const spec::ParallelSpec& p = l.run->parallel;
    const bool is_split = splits(p);
    const double value = static_cast<double>(size_of(spec::compute_dtype(*l.run)));
    const double gradient = p.zero >= 2 ? 4 : 0, gathered = p.zero >= 3 ? value : 0;
    const double head = stage.has_head ? l.probe->head.dense : 0;
    double layer = 0, layer_shard = 0;
    if (stage.last != nullptr) {
        layer = stage.last->dense + stage.last->experts;
        layer_shard = shard_of(stage.last->dense, l.shards) + shard_of(stage.last->experts, l.expert_shards);
    }
    const double of_head = gradient * (head + shard_of(head, l.shards));
    // In a step of one microbatch a unit's gradients are there from its backward on; state_of() has all of them.
    const bool once = l.microbatches == 1 && p.pp == 1;
    const double of_value = once ? l.of_value(Purpose::gradients) : 0;
    const auto held = [&](double dense, double experts) {
        return of_value *
               (p.zero >= 2 ? shard_of(dense, l.shards) + shard_of(experts, l.expert_shards) : dense + experts);
    };
    const double all_held = held(stage.dense, stage.experts), head_held = held(head, 0);
    const double layer_held = stage.last != nullptr ? held(stage.last->dense, stage.last->experts) : 0;
    double most = 0;
    if (op == Op::forward) {
        if (stage.last != nullptr) most = stage.last->forward_peak - stage.last->kept + 2 * gathered * layer;
        most -= all_held;
        if (stage.has_head)
            most = std::max(most, l.probe->head.forward_peak + (gathered + gradient) * head + gathered * layer -
                                      (all_held - head_held));
        return most;
    }
    if (stage.has_head && op != Op::backward_weight)
        most = l.probe->head.backward_peak + (gathered + gradient) * head + gathered * layer - (all_held - head_held);
    if (stage.last == nullptr) return most;
    const auto layers = static_cast<double>(stage.units.size()) - (stage.has_head ? 1 : 0) - (stage.is_first ? 1 : 0);
    // The last layer and those before it, each beside the reductions that are in flight: of this backward, else of the
    // one before.
    const auto beside_reductions = [&](double peak, double freed, bool reduces) {
        const double reduction = reduces ? gradient * (layer + layer_shard) : 0;
        const auto under_way = static_cast<double>(p.reductions);
        const double before = stage.has_head || !after ? 0 : under_way;  // the head's is the first one
        double missing = all_held - head_held - layer_held;
        most = std::max(most, peak + (stage.has_head && reduces ? of_head : 0) + before * reduction - missing);
        peak += !stage.has_head && op != Op::backward_weight ? l.probe->hidden : 0;  // of the output: until the end
        const double last = once ? std::max(layers - 1, under_way) : under_way;
        for (double done = 1; done <= last; ++done) {
            missing = std::max(0.0, missing - layer_held);
            most = std::max(most, peak - done * freed + std::min(under_way, done + before) * reduction - missing);
        }
    };
    const double kept = stage.last->kept, later = stage.last->kept_for_weight;
    if (op == Op::backward_weight) {
        beside_reductions(gradient * layer, later, true);
        return most;
    }
    const double alone = stage.last->backward_peak - kept + (2 * gathered + (is_split ? 0 : gradient)) * layer;
    beside_reductions(alone, is_split ? kept - later : kept, !is_split);
    // The first layer, where the others wait for their weight gradients.
    if (is_split)
        most = std::max(most,
                        alone + (stage.has_head ? gradient * head : l.probe->hidden) + (layers - 1) * (later - kept));
    return most;
}

}  // namespace tutti::planner
