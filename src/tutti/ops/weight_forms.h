// ops/weight_forms.h: forms of one weight that products read in its place: packed in the order of the CPU's kernels, or
// as the rule of the weight's layer makes it (nn/product_rule.h): rounded, as codes with scales, transposed. The first
// product that needs a form makes it; the products of further microbatches, or of further chunks of the head's loss,
// reuse it while the context says that weights do not change (KeepForms). The results have the same bits either way.
#pragma once

#include <functional>
#include <map>
#include <utility>

#include "tutti/ops/context.h"
#include "tutti/ops/operand.h"

namespace tutti::ops {

// The forms belong to their weight (autograd::Parameter), so the memory of its values may move.
class WeightForms {
  public:
    // Sets g, a product with this weight as b, to read its packed b from here. The kernel table says which products
    // gain (KernelTable::gemm_packed_b, packing_counts).
    void offer_packed(Context& ctx, kernels::Gemm& g);
    // What the products of `role` multiply in place of the weight: make(), or what make() returned since the weight
    // changed.
    Operand kept(Context& ctx, GemmRole role, const std::function<Operand()>& make);

  private:
    enum class Kind : uint8_t { packed, operand };
    struct Form {
        Operand operand;
        int64_t version = -1;  // Context::weights_version; -1: not made
    };
    std::map<std::pair<Kind, GemmRole>, Form> forms_;
};

// While a KeepForms lives the weights do not change, and with `keeps` the products of a context keep forms of them.
class KeepForms {
  public:
    KeepForms(Context& ctx, bool keeps) : ctx_(ctx) {
        ++ctx_.weights_version;
        ctx_.keeps_forms = keeps;
    }
    ~KeepForms() { ctx_.keeps_forms = false; }
    KeepForms(const KeepForms&) = delete;
    KeepForms& operator=(const KeepForms&) = delete;

  private:
    Context& ctx_;
};

// gemm() for a product whose b is a weight: uses the packed form where one is kept. `forms` may be null.
void multiply_by_weight(Context& ctx, kernels::Gemm g, WeightForms* forms);

}  // namespace tutti::ops
