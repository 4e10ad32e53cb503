#include "tutti/plan/ghost_tape.h"

#include "tutti/base/error.h"

namespace tutti::plan {

GhostVar GhostTape::input(const Ghost& value) {
    gradients_.emplace_back();
    return {value, static_cast<int>(gradients_.size()) - 1};
}

GhostVar GhostTape::record(const std::vector<GhostVar>& inputs, const Ghost& output, GhostInputGradient input_gradient,
                           std::optional<Ghosts> weight_saves) {
    if (!recording_) return {output, -1};
    Node node{{}, static_cast<int>(gradients_.size()), std::move(input_gradient), std::move(weight_saves), {}};
    for (const GhostVar& input : inputs) node.inputs.push_back(input.id);
    gradients_.emplace_back();
    nodes_.push_back(std::move(node));
    return {output, nodes_.back().output};
}

GhostVar GhostTape::unit(const std::string& name, const GhostVar& x,
                         const std::function<GhostVar(const GhostVar&)>& forward) {
    ledger_.enter("forward of " + name);
    GhostVar y = forward(x);
    if (recording_) nodes_.push_back({{}, -1, {}, {}, "backward of " + name});
    return y;
}

GhostVar GhostTape::recompute(const GhostVar& x, const std::function<GhostVar(GhostTape&, const GhostVar&)>& forward) {
    if (!recording_) return forward(*this, x);
    GhostTape silent(ledger_, false);
    const Ghost y = forward(silent, {x.value, -1}).value;
    auto inner = std::make_shared<std::unique_ptr<GhostTape>>();
    auto input_gradient = [this, inner, x_value = x.value, forward](const Ghost& dy) {
        inner->reset(new GhostTape(ledger_, true));
        GhostTape& tape = **inner;
        const GhostVar again = tape.input(x_value);
        tape.run(forward(tape, again), dy);
        return Ghosts{std::move(tape.gradients_[static_cast<size_t>(again.id)])};
    };
    // The real node has a weight gradient, which holds dy until it has run, but saves nothing.
    return record({x}, y, std::move(input_gradient), Ghosts{});
}

void GhostTape::run(const GhostVar& y, const Ghost& dy) {
    check(recording_ && y.id >= 0, "the planned tape did not record this value");
    add_gradient(y.id, dy);
    while (!nodes_.empty()) {
        Node node = std::move(nodes_.back());
        nodes_.pop_back();
        if (node.output < 0) {
            ledger_.enter(std::move(node.mark));
            continue;
        }
        Ghost gradient = std::move(gradients_[static_cast<size_t>(node.output)]);
        if (!gradient.defined()) continue;
        const Ghost held_for_weights = node.weight_saves ? gradient : Ghost{};
        Ghosts inputs;
        if (node.input_gradient) inputs = node.input_gradient(gradient);
        node.input_gradient = nullptr;
        gradient = {};
        for (size_t i = 0; i < inputs.size(); ++i)
            if (node.inputs[i] >= 0 && inputs[i].defined()) add_gradient(node.inputs[i], std::move(inputs[i]));
        // The weight gradient runs here; it, dy and `inputs` go at the end of the round.
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
