#include "tutti/parallel/parameter_server.h"

#include <utility>

#include "tutti/comm/tree_reduce.h"
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
    for (comm::Work& message : messages_) message.wait();
    messages_.clear();
    const Tensor sum = std::exchange(pushed_, {});
    if (received_.empty()) return;
    std::vector<const void*> inputs = {sum.view().data};
    for (const Tensor& of_worker : received_) inputs.push_back(of_worker.view().data);
    void* const output = sum.view().data;
    comm::tree_reduce(comm::Reduce::sum, DType::f32, inputs, DType::f32, {&output, 1}, 0, sum.numel());
    received_.clear();
}

std::vector<comm::Work> ParameterServer::pull(const Tensor& weights) {
    std::vector<comm::Work> messages;
    if (!serves()) messages.push_back(ranks_.receive(weights, 0));
    for (int worker = 1; serves() && worker < ranks_.size(); ++worker) messages.push_back(ranks_.send(weights, worker));
    return messages;
}

}  // namespace tutti::parallel
