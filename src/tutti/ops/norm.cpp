#include "tutti/ops/ops.h"

namespace tutti::ops {

using kernels::KernelTable;

namespace {
void check_norm(const char* op, const Tensor& x, const Tensor& w) {
    const int64_t C = x.dim(-1);
    check(x.contiguous() && w.rank() == 1 && w.dtype() == x.dtype() &&
              (w.dim(0) == C || (x.rank() > 1 && w.dim(0) == x.dim(-2) * C)),
          op, ": x (..., C) and w (C), or x (..., G, C) and w (G C), of one type, got ", x.shape(), " ", x.dtype(),
          " and ", w.shape(), " ", w.dtype());
}

void check_like(const char* op, const Tensor& x, const Tensor& other) {
    check(other.shape() == x.shape() && other.dtype() == x.dtype() && other.contiguous(), op, ": needs tensors like x ",
          x.shape(), " ", x.dtype(), ", got ", other.shape(), " ", other.dtype());
}
void check_weight_gradient(const char* op, const Tensor& x, const Tensor& dw) {
    check(dw.dtype() == DType::f32 && (dw.numel() == x.dim(-1) || dw.numel() == x.dim(-1) * x.dim(-2)), op,
          ": dw must be (C) or (G C) f32, got ", dw.shape(), " ", dw.dtype(), " for x ", x.shape());
}
}  // namespace

Norm norm(Context& ctx, const Tensor& x, const Tensor& w, const Tensor* b, double eps, const Tensor& residual,
          float offset) {
    check_norm("norm", x, w);
    if (residual.defined()) check_like("norm", x, residual);
    const auto row_statistics = [&] { return empty(ctx, {x.view().rows()}, DType::f32); };
    Norm r{.y = empty(ctx, x.shape(), x.dtype()),
           .mean = b ? row_statistics() : Tensor(),
           .rstd = row_statistics(),
           .sum = residual.defined() ? empty(ctx, x.shape(), x.dtype()) : Tensor()};
    call(ctx, &KernelTable::norm_forward, "norm_forward",
         kernels::NormForward{.x = x,
                              .w = w,
                              .b = b ? b->view() : View(),
                              .eps = static_cast<float>(eps),
                              .y = r.y,
                              .mean = r.mean,
                              .rstd = r.rstd,
                              .residual = residual,
                              .sum = r.sum,
                              .offset = offset});
    return r;
}

Tensor norm_backward_input(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& mean,
                           const Tensor& rstd, Tensor sum, float offset, const Tensor& dw, const Tensor& db) {
    check_norm("norm_backward_input", x, w);
    if (sum.defined()) check_like("norm_backward_input", x, sum);
    if (dw.defined()) check_weight_gradient("norm_backward_input", x, dw);
    // In place where no other handle shares the tensor that is added.
    const Tensor dx = sum.defined() && sum.unique() ? sum : empty(ctx, x.shape(), x.dtype());
    call(ctx, &KernelTable::norm_backward_input, "norm_backward_input",
         kernels::NormBackward{.dy = dy,
                               .x = x,
                               .w = w,
                               .mean = mean,
                               .rstd = rstd,
                               .dx = dx,
                               .add = sum,
                               .offset = offset,
                               .dw = dw,
                               .db = db});
    return dx;
}

void norm_backward_weight(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                          const Tensor& dw, const Tensor& db) {
    check_weight_gradient("norm_backward_weight", x, dw);
    call(ctx, &KernelTable::norm_backward_weight, "norm_backward_weight", dy, x, mean, rstd, dw, db);
}

}  // namespace tutti::ops
