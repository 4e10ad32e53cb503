#include "tutti/ops/ops.h"

namespace tutti::ops {

using kernels::KernelTable;

namespace {
void check_norm(const char* op, const Tensor& x, const Tensor& w) {
    check(x.contiguous() && w.rank() == 1 && w.dim(0) == x.dim(-1) && w.dtype() == x.dtype(), op,
          ": x (..., C) and w (C) of one type, got ", x.shape(), " ", x.dtype(), " and ", w.shape(), " ", w.dtype());
}
Tensor row_statistics(Context& ctx, const Tensor& x) { return empty(ctx, {x.view().rows()}, DType::f32); }

void check_like(const char* op, const Tensor& x, const Tensor& other) {
    check(other.shape() == x.shape() && other.dtype() == x.dtype() && other.contiguous(), op, ": needs tensors like x ",
          x.shape(), " ", x.dtype(), ", got ", other.shape(), " ", other.dtype());
}

Tensor sum_of(Context& ctx, const char* op, const Tensor& x, const Tensor& residual) {
    if (!residual.defined()) return {};
    check_like(op, x, residual);
    return empty(ctx, x.shape(), x.dtype());
}

// Where dx goes: over what it is added to, unless somebody else holds that.
Tensor gradient_of(Context& ctx, const char* op, const Tensor& x, const Tensor& sum) {
    if (sum.defined()) check_like(op, x, sum);
    return sum.defined() && sum.unique() ? sum : empty(ctx, x.shape(), x.dtype());
}
}  // namespace

LayerNorm layer_norm(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& b, double eps,
                     const Tensor& residual) {
    check_norm("layer_norm", x, w);
    LayerNorm r{empty(ctx, x.shape(), x.dtype()), row_statistics(ctx, x), row_statistics(ctx, x),
                sum_of(ctx, "layer_norm", x, residual)};
    call(ctx, &KernelTable::layer_norm_forward, "layer_norm_forward",
         kernels::LayerNormForward{.x = x,
                                   .w = w,
                                   .b = b,
                                   .eps = static_cast<float>(eps),
                                   .y = r.y,
                                   .mean = r.mean,
                                   .rstd = r.rstd,
                                   .residual = residual,
                                   .sum = r.sum});
    return r;
}

Tensor layer_norm_backward_input(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& mean,
                                 const Tensor& rstd, Tensor sum) {
    check_norm("layer_norm_backward_input", x, w);
    const Tensor dx = gradient_of(ctx, "layer_norm_backward_input", x, sum);
    call(ctx, &KernelTable::layer_norm_backward_input, "layer_norm_backward_input",
         kernels::LayerNormBackward{.dy = dy, .x = x, .w = w, .mean = mean, .rstd = rstd, .dx = dx, .add = sum});
    return dx;
}

void layer_norm_backward_weight(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                                const Tensor& dw, const Tensor& db) {
    check(dw.dtype() == DType::f32 && dw.numel() == x.dim(-1), "layer_norm_backward_weight: dw must be (C) f32");
    call(ctx, &KernelTable::layer_norm_backward_weight, "layer_norm_backward_weight", dy, x, mean, rstd, dw, db);
}

RmsNorm rms_norm(Context& ctx, const Tensor& x, const Tensor& w, double eps, const Tensor& residual) {
    check_norm("rms_norm", x, w);
    RmsNorm r{empty(ctx, x.shape(), x.dtype()), row_statistics(ctx, x), sum_of(ctx, "rms_norm", x, residual)};
    call(ctx, &KernelTable::rms_norm_forward, "rms_norm_forward",
         kernels::RmsNormForward{.x = x,
                                 .w = w,
                                 .eps = static_cast<float>(eps),
                                 .y = r.y,
                                 .rstd = r.rstd,
                                 .residual = residual,
                                 .sum = r.sum});
    return r;
}

Tensor rms_norm_backward_input(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& rstd,
                               Tensor sum) {
    check_norm("rms_norm_backward_input", x, w);
    const Tensor dx = gradient_of(ctx, "rms_norm_backward_input", x, sum);
    call(ctx, &KernelTable::rms_norm_backward_input, "rms_norm_backward_input",
         kernels::RmsNormBackward{.dy = dy, .x = x, .w = w, .rstd = rstd, .dx = dx, .add = sum});
    return dx;
}

void rms_norm_backward_weight(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& rstd, const Tensor& dw) {
    check(dw.dtype() == DType::f32 && dw.numel() == x.dim(-1), "rms_norm_backward_weight: dw must be (C) f32");
    call(ctx, &KernelTable::rms_norm_backward_weight, "rms_norm_backward_weight", dy, x, rstd, dw);
}

}  // namespace tutti::ops
