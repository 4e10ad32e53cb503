#include "tutti/engine/microbatch_graph.h"

#include <algorithm>
#include <vector>

namespace tutti::engine {

namespace {

using nn::Batch;

// The tensors of a batch that change from microbatch to microbatch.
template <class B>
auto tensors_of(B& b) {
    std::vector all = {&b.tokens,    &b.targets,  &b.positions,      &b.first_key,
                       &b.row_index, &b.features, &b.feature_targets};
    for (auto& ahead : b.ahead) all.insert(all.end(), {&ahead.tokens, &ahead.targets});
    return all;
}

bool same_kind(const Batch& a, const Batch& b) {
    const auto same = [](const Tensor* x, const Tensor* y) {
        return x->defined() == y->defined() && x->shape() == y->shape() && x->dtype() == y->dtype();
    };
    return std::ranges::equal(tensors_of(a), tensors_of(b), same) && a.grad_scale == b.grad_scale;
}

}  // namespace

// Copies the values to the addresses that the recording reads.
void MicrobatchGraph::take(const Batch& batch) {
    if (!same_kind(batch, inputs_)) {
        recording_ = nullptr;
        ready_ = false;
        inputs_ = batch;
        for (Tensor* x : tensors_of(inputs_))
            if (x->defined()) *x = Tensor::empty(ctx_.device, x->shape(), x->dtype(), Purpose::data);
    }
    const std::vector<const Tensor*> from = tensors_of(batch);
    const std::vector<Tensor*> to = tensors_of(inputs_);
    for (size_t i = 0; i < from.size(); ++i)
        if (from[i]->defined()) ctx_.device.copy(to[i]->view().data, from[i]->view().data, from[i]->bytes());
}

void MicrobatchGraph::run(const Batch& batch, const std::function<void(const Batch&)>& work) {
    take(batch);
    if (recording_) {
        pool_.count_again();
        recording_->run();
        return;
    }
    const Pool::Use use(pool_);
    if (!ready_) {
        work(inputs_);
        ready_ = true;
        return;
    }
    recording_ = ctx_.device.record([&] { work(inputs_); });
    recording_->run();
}

}  // namespace tutti::engine
