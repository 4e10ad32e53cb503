// engine/microbatch_graph.h: the forward and backward of a microbatch as one piece of work that the GPU repeats, so
// that the host does not start its kernels one by one (train.cuda_graphs). Below: Device::record, Pool.
//
// A microbatch has no decision of the host in it. What differs from one to the next is in its tensors, which are copied
// to a place of their own; what is passed to kernels as a number (grad_scale) is recorded, and another number means
// another recording. Hooks are called when a microbatch runs without its recording and while it is recorded; on one
// rank they only keep count, and DataParallel::finish_gradients() does not need it.
#pragma once

#include <functional>
#include <memory>

#include "tutti/nn/batch.h"
#include "tutti/ops/context.h"

namespace tutti::engine {

class MicrobatchGraph {
  public:
    explicit MicrobatchGraph(ops::Context& ctx) : ctx_(ctx), pool_(ctx.device.memory()) {}

    // Does `work`, which must leave nothing in new memory. The first microbatch of a kind just runs: it takes the
    // memory that the recording is to find, and libraries make their choices. The second is recorded; from then on
    // `work` is not called.
    void run(const nn::Batch& batch, const std::function<void(const nn::Batch&)>& work);

  private:
    void take(const nn::Batch& batch);

    ops::Context& ctx_;
    Pool pool_;  // of all that `work` allocates
    nn::Batch inputs_;
    bool ready_ = false;  // to be recorded
    std::unique_ptr<Recording> recording_;
};

}  // namespace tutti::engine
