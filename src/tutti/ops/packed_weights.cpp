#include "tutti/ops/packed_weights.h"

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

void PackedWeights::offer(Context& ctx, kernels::Gemm& g) {
    const int64_t values = packed_values(ctx.kernels, ctx.device.stream(), ctx.packing, g);
    if (values == 0) return;
    Copy& copy = copies_[{g.b.data, g.transpose_b}];
    if (!copy.values.defined()) copy.values = empty(ctx, {values}, DType::f32, Purpose::workspace);
    check(copy.values.numel() == values, "a packed weight of ", copy.values.numel(), " values is requested as ",
          values);
    g.packed_b = copy.values;
    g.b_is_packed = std::exchange(copy.written, true);
}

void PackedWeights::forget() {
    for (auto& [weight, copy] : copies_) copy.written = false;
}

void multiply_by_weight(Context& ctx, kernels::Gemm g) {
    if (ctx.packed_weights != nullptr) ctx.packed_weights->offer(ctx, g);
    gemm(ctx, g);
}

}  // namespace tutti::ops
