// engine/parameter_server.cpp: a step with a parameter server (algorithms.h), one message for each parameter.

#include "tutti/engine/algorithms.h"
#include "tutti/ops/ops.h"
#include "tutti/spec/learning_rate.h"

namespace tutti::engine {

namespace {

constexpr int kServer = 0;

// The sum over the ranks, in the order of an all_reduce, replaces the server's gradients.
void push_gradients(Engine& s) {
    comm::Communicator& ranks = s.groups.over(mesh::kDp);
    for (const optim::ParameterShard& piece : s.data_parallel->parameter_shards()) {
        if (piece.parameter->frozen()) continue;
        std::vector<Tensor> gradients = {piece.gradient()};
        std::vector<comm::Work> messages;
        if (ranks.rank() != kServer) messages.push_back(ranks.send(gradients.front(), kServer));
        for (int worker = 1; ranks.rank() == kServer && worker < ranks.size(); ++worker) {
            gradients.push_back(ops::empty(s.ctx, gradients.front().shape(), DType::f32, Purpose::communication));
            messages.push_back(ranks.receive(gradients.back(), worker));
        }
        comm::wait_all(messages);
        for (size_t step = 1; step < gradients.size(); step *= 2)  // along the tree of comm/tree_reduce.h
            for (size_t i = 0; i + step < gradients.size(); i += 2 * step)
                ops::accumulate(s.ctx, gradients[i + step], gradients[i]);
    }
}

void pull_weights(Engine& s) {
    comm::Communicator& ranks = s.groups.over(mesh::kDp);
    std::vector<comm::Work> messages;
    for (const optim::ParameterShard& piece : s.data_parallel->parameter_shards()) {
        if (piece.parameter->frozen()) continue;
        if (ranks.rank() != kServer) messages.push_back(ranks.receive(piece.value, kServer));
        for (int worker = 1; ranks.rank() == kServer && worker < ranks.size(); ++worker)
            messages.push_back(ranks.send(piece.value, worker));
        comm::wait_all(messages);
    }
}

}  // namespace

void leave_gradients_to_server(models::Model& model) {
    for (autograd::Parameter* p : model.parameters()) p->partial = {};
}

StepResult parameter_server_step(Engine& s, int64_t step) {
    StepTrace trace(s.trace, *s.device, s.graph.has_value(), *s.data_parallel);
    StepResult r{.lr = spec::learning_rate(s.run, step)};
    s.data_parallel->begin_step(microbatches_of(s.pipeline));
    run_passes(s, trace, batches_of(s, step));
    s.data_parallel->finish_gradients();
    send_losses(s);
    trace.part(Activity::other, "push gradients", [&] { push_gradients(s); });
    measure(s, step, trace, r);
    if (!may_update(s, r)) return r;
    if (s.groups.coordinate(mesh::kDp) == kServer)
        update(s, trace, r);
    else
        s.optimizer.set_updates(s.optimizer.updates() + 1);  // which a checkpoint counts
    trace.part(Activity::other, "pull weights", [&] { pull_weights(s); });
    return r;
}

}  // namespace tutti::engine
