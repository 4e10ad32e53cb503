#include "tutti/autograd/tape.h"

#include <array>
#include <memory>
#include <ranges>
#include <utility>

#include "tutti/base/to_size.h"
#include "tutti/ops/ops.h"

namespace tutti::autograd {

SavedTensor::SavedTensor(const Var& x)
    : value_(x.recomputable.state_ ? Tensor{} : x.value), recomputable_(x.recomputable) {
    if (recomputable_.state_) ++recomputable_.state_->uses;
}

Tensor SavedTensor::take() const {
    if (!recomputable_.state_) return value_;
    Recomputable::State& state = *recomputable_.state_;
    if (!state.value.defined()) state.value = state.make();
    if (--state.uses > 0) return state.value;
    state.make = nullptr;
    return std::exchange(state.value, {});
}

std::string_view name_of(PassKind kind) {
    constexpr std::array<std::string_view, 5> kNames = {"forward", "recompute", "backward", "backward input",
                                                        "backward weight"};
    return kNames[to_size(kind)];
}

Tape::Tape(ops::Context& ctx, bool recording, Hooks* hooks, Device* offload_device, int stage, int64_t microbatch)
    : ctx_(ctx),
      hooks_(hooks),
      recording_(recording),
      pass_{PassKind::forward, stage, microbatch, recording},
      root_(this),
      counting_(recording),
      offload_device_(recording ? offload_device : nullptr) {}

// A recomputed part of `parent`. The first pass records nothing but counts the uses of parameters; the second pass
// records and must not count them again.
Tape::Tape(Tape& parent, bool recording)
    : ctx_(parent.ctx_),
      hooks_(parent.hooks_),
      recording_(recording),
      pass_(parent.pass(recording ? PassKind::recompute : parent.pass_.kind)),
      root_(parent.root_),
      counting_(!recording && parent.counting_),
      offload_device_(nullptr) {}

Tape::~Tape() = default;

Var Tape::input(const Tensor& value) {
    if (!recording_) return {value, -1};
    saves(value);
    gradients_.emplace_back();
    return {value, static_cast<int>(gradients_.size()) - 1};
}

Var Tape::record(const char* op, const std::vector<Var>& inputs, const Tensor& output, InputGradient input_gradient,
                 WeightGradient weight_gradient, std::vector<Parameter*> parameters, InputGradient both_gradients) {
    if (std::erase_if(parameters, [](const Parameter* p) { return p->frozen(); }) > 0 && parameters.empty())
        weight_gradient = nullptr, both_gradients = nullptr;
    if (counting_) count_use(parameters);
    if (!recording_) return {output, -1};
    Node node{op,
              {},
              static_cast<int>(gradients_.size()),
              std::move(input_gradient),
              std::move(weight_gradient),
              std::move(parameters),
              std::move(both_gradients),
              {}};
    for (const Var& input : inputs) node.inputs.push_back(input.id);
    saves(output);
    gradients_.emplace_back();
    nodes_.push_back(std::move(node));
    return {output, nodes_.back().output};
}

void Tape::saves(const Tensor& value) {
    if (offload_device_) recorded_.push_back(value.buffer());
}

void Tape::record_mark(std::function<void()> mark) {
    if (recording_) nodes_.push_back(Node{"mark", {}, -1, {}, {}, {}, {}, std::move(mark)});
}

Var Tape::unit(Unit& unit, const Var& x, const std::function<Var(const Var&)>& forward) {
    if (recording_) parts_.push_back(nodes_.size());
    begin_part();
    if (!hooks_) {
        Var y = forward(x);
        end_part(y.value);
        return y;
    }
    const auto backward_pass = [this] { return pass(deferring_ ? PassKind::backward_input : PassKind::backward); };
    hooks_->before(unit, pass_);
    record_mark([=, this, &unit] {
        unit_ = nullptr;
        hooks_->after(unit, backward_pass());
    });
    Var y = forward(x);
    record_mark([=, this, &unit] {
        unit_ = &unit;
        hooks_->before(unit, backward_pass());
    });
    hooks_->after(unit, pass_);
    end_part(y.value);
    return y;
}

// Offloads the previous part only now: the last part, with which the backward begins, stays on the device.
void Tape::begin_part() {
    if (!offload_device_ || !part_) return;
    for (const std::weak_ptr<Buffer>& saved : *part_)
        if (const auto buffer = saved.lock(); buffer && !buffer->offloaded())
            buffer->offload(ctx_.device, *offload_device_);
}

// y is the input of the next part, and is counted there.
void Tape::end_part(const Tensor& y) {
    if (!offload_device_) return;
    auto part = std::make_shared<Saved>();
    for (std::weak_ptr<Buffer>& saved : recorded_)
        if (saved.lock() != y.buffer()) part->push_back(std::move(saved));
    recorded_.assign(1, y.buffer());
    record_mark([this, part, before = part_] {
        for (const std::weak_ptr<Buffer>& saved : *part | std::views::reverse)  // the last tensors are used first
            if (const auto buffer = saved.lock()) buffer->fetch(ctx_.device);
        if (!before) return;
        for (const std::weak_ptr<Buffer>& saved : *before)
            if (const auto buffer = saved.lock()) buffer->will_need();
    });
    part_ = std::move(part);
}

Var Tape::recompute(const Var& x, const std::function<Var(Tape&, const Var&)>& forward) {
    if (!recording_) return forward(*this, x);
    parts_.push_back(nodes_.size());
    begin_part();
    Tape silent(*this, false);
    const Tensor y = forward(silent, {x.value, -1}).value;
    // Both functions hold the inner tape, which therefore lives from I to W.
    auto inner = std::make_shared<std::unique_ptr<Tape>>();
    auto input_gradient = [this, inner, x_value = x.value, forward](const Tensor& dy, std::vector<Tensor>&) {
        inner->reset(new Tape(*this, true));
        Tape& tape = **inner;
        const Var input = tape.input(x_value);
        tape.run(forward(tape, input), dy, deferring_);
        return std::vector<Tensor>{tape.take_gradient(input)};
    };
    auto weight_gradient = [inner](const Tensor&) { (*inner)->backward_weight(); };
    const Var result = record("recompute", {x}, y, std::move(input_gradient), std::move(weight_gradient));
    end_part(y);
    return result;
}

void Tape::backward(const Var& y, const Tensor& dy) { run(y, dy, false); }

void Tape::backward_input(const Var& y, const Tensor& dy) { run(y, dy, true); }

void Tape::begin_backward(const Var& y, const Tensor& dy) { begin_run(y, dy, false); }

void Tape::run(const Var& y, const Tensor& dy, bool defer_weights) {
    begin_run(y, dy, defer_weights);
    while (backward_part()) {
    }
}

void Tape::begin_run(const Var& y, const Tensor& dy, bool defer_weights) {
    check(recording_ && y.id >= 0, "backward: the tape did not record this value");
    deferring_ = defer_weights;
    add_gradient(y.id, dy);
}

bool Tape::backward_part() {
    size_t first = 0;  // nodes outside all parts belong to the previous part
    if (!parts_.empty()) {
        first = parts_.back();
        parts_.pop_back();
    }
    while (nodes_.size() > first) run_last_node();
    return !nodes_.empty();
}

void Tape::run_last_node() {
    Node node = std::move(nodes_.back());
    nodes_.pop_back();
    if (node.mark) return node.mark();
    Tensor gradient = std::move(gradients_[to_size(node.output)]);
    if (!gradient.defined()) return;  // the node's output was not used
    Pending weight{std::move(node.weight_gradient), {}, std::move(node.parameters), deferring_ ? unit_ : nullptr};
    const bool has_weight = static_cast<bool>(weight.run);
    if (!deferring_ && node.both_gradients) {
        node.input_gradient = std::move(node.both_gradients);
        weight.run = nullptr;
    } else if (has_weight) {
        weight.dy = gradient;
    }
    std::vector<Tensor> inputs, sums(node.inputs.size());
    for (size_t i = 0; i < sums.size(); ++i)
        if (node.inputs[i] >= 0) sums[i] = std::move(gradients_[to_size(node.inputs[i])]);
    if (node.input_gradient) inputs = node.input_gradient(gradient, sums);
    node.input_gradient = node.both_gradients = nullptr;  // frees the saved tensors before more memory is allocated
    gradient = {};
    check(inputs.empty() || inputs.size() == node.inputs.size(), node.op, ": ", inputs.size(), " gradients for ",
          node.inputs.size(), " inputs");
    for (std::vector<Tensor>* parts : {&sums, &inputs})
        for (size_t i = 0; i < parts->size(); ++i)
            if (node.inputs[i] >= 0 && (*parts)[i].defined()) add_gradient(node.inputs[i], std::move((*parts)[i]));
    if (has_weight) {
        pending_.push_back(std::move(weight));
        if (!deferring_) backward_weight();
    }
}

void Tape::backward_weight() {
    Unit* announced = nullptr;
    const auto announce = [&](Unit* unit) {
        if (unit == announced) return;
        if (announced) hooks_->after(*announced, pass(PassKind::backward_weight));
        if (unit) hooks_->before(*unit, pass(PassKind::backward_weight));
        announced = unit;
    };
    while (!pending_.empty()) {
        Pending pending = std::move(pending_.front());
        pending_.pop_front();
        announce(pending.unit);
        if (pending.run) pending.run(pending.dy);
        pending.run = nullptr;
        for (Parameter* parameter : pending.parameters)
            end_use(*parameter, deferring_ ? PassKind::backward_weight : PassKind::backward);
    }
    announce(nullptr);
}

void Tape::count_use(const std::vector<Parameter*>& parameters) {
    for (Parameter* parameter : parameters) ++root_->uses_[parameter];
}

void Tape::end_use(Parameter& parameter, PassKind kind) {
    if (--root_->uses_[&parameter] == 0 && hooks_) hooks_->gradient_ready(parameter, pass(kind));
}

void Tape::gradient_taken(Parameter& parameter) {
    if (parameter.frozen()) return;
    count_use({&parameter});
    end_use(parameter, pass_.kind);
}

void Tape::add_gradient(int id, Tensor gradient) {
    Tensor& sum = gradients_[to_size(id)];
    if (!sum.defined())
        sum = std::move(gradient);
    else if (sum.unique())
        ops::accumulate(ctx_, gradient, sum);
    else
        sum = ops::add(ctx_, sum, gradient);
}

Tensor Tape::take_gradient(const Var& leaf) {
    check(leaf.id >= 0 && leaf.id < static_cast<int>(gradients_.size()), "take_gradient: not a leaf of this tape");
    return std::move(gradients_[to_size(leaf.id)]);
}

}  // namespace tutti::autograd
