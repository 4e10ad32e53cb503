// ops/packed_weights.h: weights in the order in which matrix products read them. The first product packs a weight; the
// products of further microbatches, or of further chunks of the head's loss, reuse the copy. The results have the bits
// of a product that packs for itself. The kernel table says which products gain (KernelTable::gemm_packed_b,
// packing_counts).
#pragma once

#include <map>
#include <utility>

#include "tutti/ops/context.h"

namespace tutti::ops {

// Packed copies of weights. The weights must not change or move before forget().
class PackedWeights {
  public:
    // Sets g to read its packed b from the copy; the first product of a weight writes the copy.
    void offer(Context& ctx, kernels::Gemm& g);
    // Call before the weights change: the next product packs again. The memory is reused.
    void forget();

  private:
    struct Copy {
        Tensor values;
        bool written = false;
    };
    std::map<std::pair<const void*, bool>, Copy> copies_;  // by weight, and whether it is transposed
};

// While a KeepPacked lives, the products of a context use `weights`; nullptr: no copies.
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

// gemm() for a product whose b is a weight: uses the packed copy where there is one.
void multiply_by_weight(Context& ctx, kernels::Gemm g);

}  // namespace tutti::ops
