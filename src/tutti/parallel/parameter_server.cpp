#include "tutti/parallel/parameter_server.h"

#include <utility>

#include "tutti/ops/ops.h"

namespace tutti::parallel {

void ParameterServer::push(const Tensor& gradients) {
    finish();
    pushed_ = gradients;
    if (!serves()) {
        messages_.push_back(ranks_.send(gradients, 0));
        return;
    }
    for (int worker = 1; worker < ranks_.size(); ++worker) {
        received_.push_back(ops::empty(ctx_, gradients.shape(), DType::f32, Purpose::communication));
        messages_.push_back(ranks_.receive(received_.back(), worker));
    }
}

void ParameterServer::finish() {
    comm::wait_all(messages_);
    std::vector<Tensor> sums = {std::exchange(pushed_, {})};
    sums.insert(sums.end(), received_.begin(), received_.end());
    for (size_t step = 1; step < sums.size(); step *= 2)  // along the tree of comm/tree_reduce.h
        for (size_t i = 0; i + step < sums.size(); i += 2 * step) ops::accumulate(ctx_, sums[i + step], sums[i]);
    received_.clear();
}

std::vector<comm::Work> ParameterServer::pull(const Tensor& weights) {
    std::vector<comm::Work> messages;
    if (!serves()) messages.push_back(ranks_.receive(weights, 0));
    for (int worker = 1; serves() && worker < ranks_.size(); ++worker) messages.push_back(ranks_.send(weights, worker));
    return messages;
}

}  // namespace tutti::parallel
