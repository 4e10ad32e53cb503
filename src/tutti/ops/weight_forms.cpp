#include "tutti/ops/weight_forms.h"

#include "tutti/ops/ops.h"

namespace tutti::ops {

namespace {

// Size in f32 values of the packed b that products like g reuse; 0: none.
int64_t packed_values(const kernels::KernelTable& kernels, const Stream& stream, Packing packing,
                      const kernels::Gemm& g) {
    const bool wanted = packing == Packing::always ||
                        (packing == Packing::where_it_pays && kernels.packing_counts && g.a.dtype == DType::bf16);
    return wanted && kernels.gemm_packed_b ? kernels.gemm_packed_b(stream, g) : 0;
}

}  // namespace

void WeightForms::offer_packed(Context& ctx, kernels::Gemm& g) {
    const int64_t values = packed_values(ctx.kernels, ctx.device.stream(), ctx.packing, g);
    if (values == 0) return;
    Form& form = forms_[{Kind::packed, g.transpose_b ? GemmRole::forward : GemmRole::input_gradient}];
    if (!form.operand.values.defined()) form.operand.values = empty(ctx, {values}, DType::f32, Purpose::workspace);
    check(form.operand.values.numel() == values, "a packed weight of ", form.operand.values.numel(),
          " values is requested as ", values);
    g.packed_b = form.operand.values;
    g.b_is_packed = std::exchange(form.version, ctx.weights_version) == ctx.weights_version;
}

Operand WeightForms::kept(Context& ctx, GemmRole role, const std::function<Operand()>& make) {
    Operand operand;
    if (ctx.keeps_forms) {
        Form& form = forms_[{Kind::operand, role}];
        if (form.version != ctx.weights_version) {
            form = {};  // frees the last one's memory before the next is allocated
            form = {make(), ctx.weights_version};
        }
        operand = form.operand;
    } else {
        operand = make();
    }
    operand.forms = this;
    return operand;
}

void multiply_by_weight(Context& ctx, kernels::Gemm g, WeightForms* forms) {
    if (ctx.keeps_forms && forms != nullptr) forms->offer_packed(ctx, g);
    gemm(ctx, g);
}

}  // namespace tutti::ops
