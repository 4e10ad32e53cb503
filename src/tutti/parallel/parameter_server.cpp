#include "tutti/parallel/parameter_server.h"

#include <utility>

#include "tutti/ops/ops.h"

namespace tutti::parallel {

namespace {

DataParallelOptions with_server(DataParallelOptions options, const Groups& groups) {
    check(options.zero == Zero::none, "a parameter server keeps the state: nothing is left to shard");
    options.updates = groups.coordinate(mesh::kDp) == 0;
    return options;
}

}  // namespace

ParameterServer::ParameterServer(ops::Context& ctx, const std::vector<std::vector<autograd::Unit*>>& runs,
                                 Groups& groups, const DataParallelOptions& options)
    : DataParallel(ctx, runs, groups, with_server(options, groups)), ctx_(ctx), ranks_(groups.over(mesh::kDp)) {
    ParameterServer::all_gather_weights();
}

void ParameterServer::start_replica_reduction(State& state) {
    finish_sum();
    sent_ = state.flat->gradients();
    if (!serves()) messages_.push_back(ranks_.send(sent_, 0));
    for (int worker = 1; serves() && worker < ranks_.size(); ++worker) {
        received_.push_back(ops::empty(ctx_, sent_.shape(), DType::f32, Purpose::communication));
        messages_.push_back(ranks_.receive(received_.back(), worker));
    }
}

void ParameterServer::finish_sum() {
    comm::wait_all(messages_);
    std::vector<Tensor> sums = {std::exchange(sent_, {})};
    sums.insert(sums.end(), received_.begin(), received_.end());
    for (size_t step = 1; step < sums.size(); step *= 2)  // along the tree of comm/tree_reduce.h
        for (size_t i = 0; i + step < sums.size(); i += 2 * step) ops::accumulate(ctx_, sums[i + step], sums[i]);
    received_.clear();
}

void ParameterServer::finish_gradients() {
    DataParallel::finish_gradients();
    finish_sum();
}

void ParameterServer::all_gather_weights() {
    for (const auto& state : states()) {
        const Tensor& weights = state->flat->weights();
        if (!serves()) state->gather.push_back(ranks_.receive(weights, 0));
        for (int worker = 1; serves() && worker < ranks_.size(); ++worker)
            state->gather.push_back(ranks_.send(weights, worker));
        state->gathering = true;
    }
}

}  // namespace tutti::parallel
