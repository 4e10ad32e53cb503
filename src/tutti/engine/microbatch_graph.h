// engine/microbatch_graph.h: the forward and backward of a microbatch as a CUDA graph that the GPU replays, so that the
// host does not launch its kernels one by one (train.cuda_graphs).
//
// The host decides nothing within a microbatch. Microbatches differ in their tensors, which are copied to fixed
// addresses. Numbers passed to kernels (grad_scale) are recorded, so another number needs another recording. Hooks are
// called when a microbatch runs without a recording and while it is recorded; on one rank they only count, and
// DataParallel::finish_gradients() does not need the counts.
#pragma once

#include <functional>
#include <memory>

#include "tutti/nn/batch.h"
#include "tutti/ops/context.h"

namespace tutti::engine {

class MicrobatchGraph {
  public:
    explicit MicrobatchGraph(ops::Context& ctx) : ctx_(ctx), pool_(ctx.device.memory()) {}

    // Runs `work`, which must leave no results in memory that it allocates. The first microbatch of a kind runs
    // directly: it allocates the memory of the recording, and libraries choose their algorithms. The second is
    // recorded; later ones replay the recording without calling `work`.
    void run(const nn::Batch& batch, const std::function<void(const nn::Batch&)>& work);

  private:
    void take(const nn::Batch& batch);

    ops::Context& ctx_;
    Pool pool_;  // of the memory that `work` allocates
    nn::Batch inputs_;
    bool ready_ = false;  // for recording
    std::unique_ptr<Recording> recording_;
};

}  // namespace tutti::engine
