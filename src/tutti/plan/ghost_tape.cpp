#include "tutti/plan/ghost_tape.h"

#include <utility>

#include "tutti/base/error.h"

namespace tutti::plan {

GhostKept::GhostKept(const GhostVar& x) : value_(x.again ? Ghost{} : x.value), again_(x.again) {
    if (again_) ++again_->uses;
}

Ghost GhostKept::take() const {
    if (!again_) return value_;
    if (!again_->value.defined()) again_->value = again_->make();
    if (--again_->uses > 0) return again_->value;
    again_->make = nullptr;
    return std::exchange(again_->value, {});
}

GhostVar GhostTape::input(const Ghost& value) {
    gradients_.emplace_back();
    return {value, static_cast<int>(gradients_.size()) - 1};
}

GhostVar GhostTape::record(const std::vector<GhostVar>& inputs, const Ghost& output, GhostInputGradient input_gradient,
                           GhostWeightGradient weight_gradient) {
    if (!recording_) return {output, -1};
    Node node{{}, static_cast<int>(gradients_.size()), std::move(input_gradient), std::move(weight_gradient), {}};
    for (const GhostVar& input : inputs) node.inputs.push_back(input.id);
    saves(output);
    gradients_.emplace_back();
    nodes_.push_back(std::move(node));
    return {output, nodes_.back().output};
}

void GhostTape::saves(const Ghost& value) {
    if (options_.offload) recorded_.push_back(value.block());
}

void GhostTape::record_mark(std::function<void()> mark) {
    if (recording_) nodes_.push_back({{}, -1, {}, {}, std::move(mark)});
}

GhostVar GhostTape::unit(size_t index, const std::string& name, const GhostVar& x,
                         const std::function<GhostVar(const GhostVar&)>& forward) {
    GhostHooks* hooks = options_.hooks;
    begin_part();
    ledger_.enter("forward of " + name);
    if (hooks) hooks->before_forward(index);
    if (hooks) record_mark([hooks, index] { hooks->gradients_ready(index), hooks->after_backward(index); });
    GhostVar y = forward(x);
    record_mark([this, hooks, index, name] {
        ledger_.enter("backward of " + name);
        if (hooks) hooks->before_backward(index);
    });
    if (hooks) hooks->after_forward(index);
    end_part(y.value);
    return y;
}

void GhostTape::begin_part() {
    if (!options_.offload || !part_) return;
    for (const auto& saved : *part_)
        if (const auto block = saved.lock()) block->send_away();
}

void GhostTape::end_part(const Ghost& y) {
    if (!options_.offload) return;
    auto part = std::make_shared<Saved>();
    for (auto& saved : recorded_)
        if (saved.lock() != y.block()) part->push_back(std::move(saved));
    recorded_.assign(1, y.block());
    record_mark([part] {
        for (const auto& saved : *part)
            if (const auto block = saved.lock()) block->bring_back();
    });
    part_ = std::move(part);
}

GhostVar GhostTape::recompute(const GhostVar& x, const std::function<GhostVar(GhostTape&, const GhostVar&)>& forward) {
    if (!recording_) return forward(*this, x);
    begin_part();
    const GhostTapeOptions inside{.hooks = options_.hooks};
    GhostTape silent(ledger_, false, inside);
    const Ghost y = forward(silent, {x.value, -1}).value;
    auto inner = std::make_shared<std::unique_ptr<GhostTape>>();
    auto input_gradient = [this, inside, inner, x_value = x.value, forward](const Ghost& dy, Ghosts&) {
        inner->reset(new GhostTape(ledger_, true, inside));
        GhostTape& tape = **inner;
        const GhostVar again = tape.input(x_value);
        tape.run(forward(tape, again), dy);
        return Ghosts{std::move(tape.gradients_[static_cast<size_t>(again.id)])};
    };
    // The real node has a weight gradient, which holds dy until it has run, but saves nothing.
    const GhostVar result = record({x}, y, std::move(input_gradient), [] {});
    end_part(y);
    return result;
}

void GhostTape::run(const GhostVar& y, const Ghost& dy) {
    check(recording_ && y.id >= 0, "the planned tape did not record this value");
    add_gradient(y.id, dy);
    while (!nodes_.empty()) {
        Node node = std::move(nodes_.back());
        nodes_.pop_back();
        if (node.mark) {
            node.mark();
            continue;
        }
        Ghost gradient = std::move(gradients_[static_cast<size_t>(node.output)]);
        if (!gradient.defined()) continue;
        const Ghost held_for_weights = node.weight_gradient ? gradient : Ghost{};
        Ghosts inputs, sums(node.inputs.size());
        for (size_t i = 0; i < sums.size(); ++i)
            if (node.inputs[i] >= 0) sums[i] = std::move(gradients_[static_cast<size_t>(node.inputs[i])]);
        if (node.input_gradient) inputs = node.input_gradient(gradient, sums);
        node.input_gradient = nullptr;
        gradient = {};
        for (Ghosts* parts : {&sums, &inputs})
            for (size_t i = 0; i < parts->size(); ++i)
                if (node.inputs[i] >= 0 && (*parts)[i].defined()) add_gradient(node.inputs[i], std::move((*parts)[i]));
        if (node.weight_gradient) node.weight_gradient();
        // It, dy and `inputs` go at the end of the round.
    }
}

void GhostTape::add_gradient(int id, Ghost gradient) {
    Ghost& sum = gradients_[static_cast<size_t>(id)];
    if (!sum.defined()) {
        sum = std::move(gradient);
    } else if (!sum.unique()) {
        sum = Ghost(ledger_, sum.bytes());
    }  // else added in place
}

}  // namespace tutti::plan
