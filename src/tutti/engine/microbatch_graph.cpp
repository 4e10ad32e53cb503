#include "tutti/engine/microbatch_graph.h"

namespace tutti::engine {

namespace {

using nn::Batch;

constexpr Tensor Batch::*kTensors[] = {&Batch::tokens,    &Batch::targets,  &Batch::positions,      &Batch::first_key,
                                       &Batch::row_index, &Batch::features, &Batch::feature_targets};

bool same_kind(const Batch& a, const Batch& b) {
    for (const auto tensor : kTensors) {
        const Tensor &x = a.*tensor, &y = b.*tensor;
        if (x.defined() != y.defined() || x.shape() != y.shape() || x.dtype() != y.dtype()) return false;
    }
    return a.grad_scale == b.grad_scale;
}

}  // namespace

// Copies the values to the addresses that the recording reads.
void MicrobatchGraph::take(const Batch& batch) {
    if (!same_kind(batch, inputs_)) {
        recording_ = nullptr;
        ready_ = false;
        inputs_ = batch;
        for (const auto tensor : kTensors)
            if (const Tensor& x = batch.*tensor; x.defined())
                inputs_.*tensor = Tensor::empty(ctx_.device, x.shape(), x.dtype(), Purpose::data);
    }
    for (const auto tensor : kTensors)
        if (const Tensor& x = batch.*tensor; x.defined())
            ctx_.device.copy((inputs_.*tensor).view().data, x.view().data, x.bytes());
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
