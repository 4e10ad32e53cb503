#include "tutti/ops/ops.h"

namespace tutti::ops {

using kernels::KernelTable;

namespace {
void check_norm(const char* op, const Tensor& x, const Tensor& w) {
    check(x.contiguous() && w.rank() == 1 && w.dim(0) == x.dim(-1) && w.dtype() == x.dtype(), op,
          ": x (..., C) and w (C) of one type, got ", x.shape(), " ", x.dtype(), " and ", w.shape(), " ", w.dtype());
}
Tensor row_statistics(Context& ctx, const Tensor& x) { return empty(ctx, {x.view().rows()}, DType::f32); }
}  // namespace

LayerNorm layer_norm(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& b, double eps) {
    check_norm("layer_norm", x, w);
    LayerNorm r{empty(ctx, x.shape(), x.dtype()), row_statistics(ctx, x), row_statistics(ctx, x)};
    call(ctx, &KernelTable::layer_norm_forward, "layer_norm_forward", x, w, b, static_cast<float>(eps), r.y, r.mean,
         r.rstd);
    return r;
}

Tensor layer_norm_backward_input(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& mean,
                                 const Tensor& rstd) {
    check_norm("layer_norm_backward_input", x, w);
    Tensor dx = empty(ctx, x.shape(), x.dtype());
    call(ctx, &KernelTable::layer_norm_backward_input, "layer_norm_backward_input", dy, x, w, mean, rstd, dx);
    return dx;
}

void layer_norm_backward_weight(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                                const Tensor& dw, const Tensor& db) {
    check(dw.dtype() == DType::f32 && dw.numel() == x.dim(-1), "layer_norm_backward_weight: dw must be (C) f32");
    call(ctx, &KernelTable::layer_norm_backward_weight, "layer_norm_backward_weight", dy, x, mean, rstd, dw, db);
}

RmsNorm rms_norm(Context& ctx, const Tensor& x, const Tensor& w, double eps) {
    check_norm("rms_norm", x, w);
    RmsNorm r{empty(ctx, x.shape(), x.dtype()), row_statistics(ctx, x)};
    call(ctx, &KernelTable::rms_norm_forward, "rms_norm_forward", x, w, static_cast<float>(eps), r.y, r.rstd);
    return r;
}

Tensor rms_norm_backward_input(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& rstd) {
    check_norm("rms_norm_backward_input", x, w);
    Tensor dx = empty(ctx, x.shape(), x.dtype());
    call(ctx, &KernelTable::rms_norm_backward_input, "rms_norm_backward_input", dy, x, w, rstd, dx);
    return dx;
}

void rms_norm_backward_weight(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& rstd, const Tensor& dw) {
    check(dw.dtype() == DType::f32 && dw.numel() == x.dim(-1), "rms_norm_backward_weight: dw must be (C) f32");
    call(ctx, &KernelTable::rms_norm_backward_weight, "rms_norm_backward_weight", dy, x, rstd, dw);
}

}  // namespace tutti::ops
