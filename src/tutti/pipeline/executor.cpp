#include "tutti/pipeline/executor.h"

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/timing.h"
#include "tutti/ops/ops.h"

namespace tutti::pipeline {

using autograd::Tape;
using schedule::Action;
using schedule::Op;
using schedule::Work;

Executor::Executor(ops::Context& ctx, models::Model& model, parallel::Groups& groups, const Pipeline& pipeline,
                   const PassOptions& options)
    : ctx_(ctx), model_(model), options_(options) {
    const schedule::Placement& placement = pipeline.schedule.placement;
    const std::vector<ModelChunk> chunks = pipeline.chunks();
    for (size_t run = 0; run < chunks.size(); ++run) {
        const ModelChunk& c = chunks[run];
        stages_[{c.replica, c.stage}] = {run, c.span, {c.stage > 0}, {c.stage + 1 < placement.stages}};
    }
    const auto connect = [&](int replica, int from, int to) {
        const int sender = placement.rank_of(replica, from), receiver = placement.rank_of(replica, to);
        if (sender == receiver || (sender != pipeline.rank && receiver != pipeline.rank)) return;
        const std::string name = concat("pp ", from, replica > 0 ? "'" : "", ">", to, replica > 0 ? "'" : "");
        Channel& channel = groups.channel(name, sender, receiver);
        Stage& here = stages_.at({replica, sender == pipeline.rank ? from : to});
        Neighbour& there = (from < to) == (sender == pipeline.rank) ? here.after : here.before;
        (sender == pipeline.rank ? there.outward : there.inward) = &channel;
    };
    for (int replica = 0; replica < placement.replicas; ++replica)  // the same order on every rank
        for (int stage = 0; stage + 1 < placement.stages; ++stage) {
            connect(replica, stage, stage + 1);
            connect(replica, stage + 1, stage);
        }
}

// A message is a tensor, with the means of the layers so far where a loss balances all layers. Waits for the oldest
// message when a limit of messages in flight is reached.
void Executor::send(Channel& channel, Tensor x, const Work& work, const Passes& of) {
    const auto of_channel = [&](const Message& m) { return m.channel == &channel; };
    const bool is_full = std::count_if(sent_.begin(), sent_.end(), of_channel) == kMessagesOfChannel;
    std::vector<Tensor> tensors = {std::move(x)};
    if (of.routing != nullptr) tensors.push_back(of.routing->means_message(work.microbatch));
    if (is_full || std::ssize(sent_) == kMessagesOfRank) {
        const auto oldest = is_full ? std::find_if(sent_.begin(), sent_.end(), of_channel) : sent_.begin();
        for (auto& [sent, tensor] : oldest->tensors) sent.wait();
        sent_.erase(oldest);
    }
    Message& message = sent_.emplace_back(&channel);
    for (const Tensor& tensor : tensors) message.tensors.emplace_back(channel.send(tensor, 1), tensor);
    channel.start_messages();  // no message returns in this group
}

void Executor::receive(Channel& channel, const Tensor& x, Flight& f, const Passes& of) {
    f.arrivals.push_back(channel.receive(x, 0));
    if (of.routing != nullptr) {
        f.means = ops::empty(ctx_, of.routing->means_shape(), DType::f64);
        f.arrivals.push_back(channel.receive(f.means, 0));
    }
    channel.start_messages();  // before the next computation, which they run beside
}

void Executor::run(const schedule::Program& program, const Passes& passes) {
    const double begin = seconds_now();
    for (size_t i = 0; i < program.size(); ++i) {
        const auto next = std::find_if(program.begin() + static_cast<ptrdiff_t>(i) + 1, program.end(),
                                       [](const Action& a) { return schedule::is_compute(a.op); });
        const bool turns_round = next != program.end() && next->op != Op::forward && next->op != Op::overlap &&
                                 next->work() == program[i].work();
        run(program[i], passes, !turns_round);
    }
    for (Message& message : sent_)
        for (auto& [work, tensor] : message.tensors) work.wait();
    sent_.clear();
    if (passes.training) seconds_.whole += seconds_now() - begin;
    check(flights_.empty(), "a schedule ended with ", flights_.size(), " microbatches in flight");
}

void Executor::run(const Action& action, const Passes& of, bool waits) {
    const Work work = action.work();
    switch (action.op) {
        case Op::receive_activation: {
            Flight& f = flights_[work];
            f.batch = of.batch(work.microbatch);
            f.input = ops::empty(ctx_, hidden_shape(*f.batch), options_.compute);
            return receive(*stage_of(work).before.inward, f.input, f, of);
        }
        case Op::forward:
        case Op::backward:
        case Op::backward_input:
        case Op::backward_weight:
        case Op::overlap: return pass(action, of, waits);
        case Op::send_activation:
            send(*stage_of(work).after.outward, std::exchange(flights_.at(work).out.value, {}), work, of);
            if (!of.training) flights_.erase(work);
            return;
        case Op::receive_gradient: {
            Flight& f = flights_.at(work);
            f.gradient = ops::empty(ctx_, f.shape, options_.compute);
            return receive(*stage_of(work).after.inward, f.gradient, f, of);
        }
        case Op::send_gradient:
            send(*stage_of(work).before.outward, std::exchange(flights_.at(work).input_gradient, {}), work, of);
            return retire(work);
        case Op::unshard:
            if (of.weights) of.weights->unshard(stage_of(work).run);
            return;
        case Op::reshard:
            if (of.weights) of.weights->reshard(stage_of(work).run);
            return;
    }
    throw Error(concat("the executor has no such action: ", schedule::to_string(action)));
}

void Executor::pass(const Action& action, const Passes& of, bool waits) {
    for (const Action& part : schedule::Parts(action)) await_inputs(part, of);
    {
        if (of.before) of.before(action);
        const TraceScope span(of.trace, {Activity::action, of.trace ? schedule::to_string(action) : ""});
        const double begin = seconds_now();
        compute(action, of);
        if (of.training) seconds_.busy += seconds_now() - begin;
        if (of.after) of.after(action);
    }
    for (const Action& part : schedule::Parts(action)) end_pass(part, of, waits);
}

void Executor::await_inputs(const Action& part, const Passes& of) {
    Flight& f = flights_[part.work()];
    if (part.op == Op::forward && !f.batch) f.batch = of.batch(part.microbatch);
    comm::wait_all(f.arrivals);
    if (f.means.defined()) of.routing->set_means(part.microbatch, std::exchange(f.means, {}));
}

void Executor::compute(const Action& action, const Passes& of) {
    const Work work = action.work();
    if (action.op == Op::forward) return forward(work, of);
    if (action.op == Op::overlap) return overlap(action, of);
    Flight& f = flights_.at(work);
    if (action.op == Op::backward_weight) return f.tape->backward_weight();
    if (action.op == Op::backward_input)
        f.tape->backward_input(f.out, seed_of(work));
    else
        f.tape->backward(f.out, seed_of(work));
    send_input_gradient(work);
}

void Executor::end_pass(const Action& part, const Passes& of, bool waits) {
    Flight& f = flights_.at(part.work());
    if (part.op == Op::forward) {
        if (waits) f.tape->offload_rest();
        return send_output(part.work(), of);
    }
    if (part.op != Op::backward_input) f.tape.reset();
    retire(part.work());
}

void Executor::forward(const Work& work, const Passes& of, const std::function<void()>& between) {
    Flight& f = flights_.at(work);
    f.tape.emplace(ctx_, of.training, &of.hooks, options_.offload_device, work.stage, work.microbatch);
    f.tape->set_selective(options_.selective, options_.copies_weights);
    if (work.stage > 0) f.in = f.tape->input(std::exchange(f.input, {}));
    f.out = model_.run(*f.tape, f.in, *f.batch, stage_of(work).span, of.training ? options_.segment : 0, between);
    f.in.value = {};
    f.shape = f.out.value.shape();
}

// The forward's first unit, the backward's last one, the forward's second one, ...
void Executor::overlap(const Action& action, const Passes& of) {
    Flight& b = flights_.at(action.backward);
    b.tape->begin_backward(b.out, seed_of(action.backward));
    bool more = true;
    const auto backward_part = [&] { more = more && b.tape->backward_part(); };
    forward(action.work(), of, backward_part);
    while (more) backward_part();
    send_input_gradient(action.backward);
}

// Passes on the output of a forward: from the last stage to the caller, to a stage of this rank, or to be sent.
void Executor::send_output(const Work& work, const Passes& of) {
    Flight& f = flights_.at(work);
    const Neighbour& after = stage_of(work).after;
    if (!after.exists)
        of.output(work.microbatch, *f.batch, f.out.value);
    else if (after.here())
        flights_[{work.replica, work.stage + 1, work.microbatch}].input = std::exchange(f.out.value, {});
    f.batch.reset();
    if (!of.training && (!after.exists || after.here())) flights_.erase(work);
}

// The gradient of the output. The loss already holds its gradients and ignores the seed.
Tensor Executor::seed_of(const Work& work) {
    Flight& f = flights_.at(work);
    return std::exchange(stage_of(work).after.exists ? f.gradient : f.out.value, {});
}

// Passes on the gradient of the input, after I or B: to a stage of this rank, or to be sent.
void Executor::send_input_gradient(const Work& work) {
    const Neighbour& before = stage_of(work).before;
    if (!before.exists) return;
    Flight& f = flights_.at(work);
    Tensor& place =
        before.here() ? flights_.at({work.replica, work.stage - 1, work.microbatch}).gradient : f.input_gradient;
    place = f.tape->take_gradient(f.in);
}

// With sequence parallelism a rank has a part of the rows of a sequence between products.
Shape Executor::hidden_shape(const nn::Batch& batch) const {
    if (batch.features.defined()) return batch.features.shape();
    const autograd::TensorParallel& tp = model_.parameters().front()->tensor_parallel;
    return {batch.tokens.dim(0), batch.tokens.dim(1) / (tp.sequence ? tp.ranks->size() : 1), model_.spec().width};
}

// Ends a flight when its backward is done and the gradient of its input is being sent.
void Executor::retire(const Work& work) {
    const Flight& f = flights_.at(work);
    if (!f.tape && !f.input_gradient.defined()) flights_.erase(work);
}

}  // namespace tutti::pipeline
