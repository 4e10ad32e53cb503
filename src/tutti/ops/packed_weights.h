// ops/packed_weights.h: weights in the order in which matrix products read them: packed by the first product, kept for
// the further ones, of the microbatches of a step or of the chunks of the head's loss. The bits are those of a product
// that packs for itself. Which products gain is the kernels' to say (KernelTable::gemm_packed_b, packing_counts).
#pragma once

#include <map>
#include <utility>

#include "tutti/ops/context.h"

namespace tutti::ops {

// The copies of some weights, which stay as they are and where they are until forget().
class PackedWeights {
  public:
    // g will read its b from here, or write it here first.
    void offer(Context& ctx, kernels::Gemm& g);
    // The weights are about to change. Memory is kept.
    void forget();

  private:
    struct Copy {
        Tensor values;
        bool written = false;
    };
    std::map<std::pair<const void*, bool>, Copy> copies_;  // by weight, and whether it is transposed
};

// In its scope the products of a context use `weights`; nullptr: none.
class KeepPacked {
  public:
    KeepPacked(Context& ctx, PackedWeights* weights) : ctx_(ctx) {
        if (weights != nullptr) weights->forget();
        ctx_.packed_weights = weights;
    }
    ~KeepPacked() { ctx_.packed_weights = nullptr; }
    KeepPacked(const KeepPacked&) = delete;
    KeepPacked& operator=(const KeepPacked&) = delete;

  private:
    Context& ctx_;
};

// gemm() of a g whose b is a weight.
void multiply_by_weight(Context& ctx, kernels::Gemm g);

}  // namespace tutti::ops
