#include <algorithm>

#include "tutti/ops/ops.h"

namespace tutti::ops {

using kernels::KernelTable;

namespace {

int64_t channels_of(const ShortConvolution& f) { return f.gates ? f.p.dim(2) / 3 : f.p.dim(2); }

// b, c or x of p; without gates p is x.
Tensor section(const Tensor& p, int i, bool gates) {
    if (!gates) return i == 2 ? p : Tensor();
    return p.narrow(2, i * (p.dim(2) / 3), p.dim(2) / 3);
}

void check_state(const char* op, const char* name, const Tensor& x, const Shape& shape) {
    check(!x.defined() || (x.shape() == shape && x.dtype() == DType::f32 && x.contiguous()), op, ": ", name,
          " must be f32 ", shape, ", got ", x.shape(), " ", x.dtype());
}

// Returns all inputs but the values of w, of which only the shape is set.
kernels::ShortConvolution checked_inputs(const char* op, const ShortConvolution& f, int64_t taps) {
    check(f.p.rank() == 3 && (!f.gates || f.p.dim(2) % 3 == 0), op, ": p must be (B, T, ", f.gates ? "3 C" : "C",
          "), got ", f.p.shape());
    const int64_t B = f.p.dim(0), C = channels_of(f);
    check(taps >= 1 && taps <= kernels::kMaxTaps, op, ": 1 to ", kernels::kMaxTaps, " taps, got ", taps);
    check(f.positions.dtype() == DType::i32 && f.positions.shape() == Shape{B, f.p.dim(1)}, op,
          ": positions must be i32 (B, T) for p ", f.p.shape(), ", got ", f.positions.shape(), " ",
          f.positions.dtype());
    check_state(op, "before", f.before, {B, taps - 1, C});
    return {.b = section(f.p, 0, f.gates),
            .c = section(f.p, 1, f.gates),
            .x = section(f.p, 2, f.gates),
            .w = View(nullptr, f.p.dtype(), {C, taps}),
            .positions = f.positions,
            .before = f.before};
}

kernels::ShortConvolution checked(const char* op, const ShortConvolution& f) {
    check(f.w.rank() == 3 && f.w.shape() == Shape{channels_of(f), 1, f.w.dim(2)} && f.w.contiguous() &&
              f.w.dtype() == f.p.dtype(),
          op, ": w must be (C, 1, K) for p ", f.p.shape(), " ", f.p.dtype(), ", got ", f.w.shape(), " ", f.w.dtype());
    kernels::ShortConvolution inputs = checked_inputs(op, f, f.taps());
    check(!f.bias.defined() || (f.bias.shape() == Shape{f.w.dim(0)} && f.bias.dtype() == f.p.dtype()), op,
          ": the bias must be ", f.p.dtype(), " (", f.w.dim(0), "), got ", f.bias.shape(), " ", f.bias.dtype());
    inputs.w.data = f.w.view().data;
    inputs.bias = f.bias;
    return inputs;
}

void check_output(const char* op, const char* name, const Tensor& z, const ShortConvolution& f) {
    check(z.shape() == Shape{f.p.dim(0), f.p.dim(1), channels_of(f)} && z.dtype() == f.p.dtype(), op, ": ", name,
          " must be (B, T, C) like p ", f.p.shape(), " ", f.p.dtype(), ", got ", z.shape(), " ", z.dtype());
}

}  // namespace

void short_convolution(Context& ctx, const ShortConvolution& f, const Tensor& z) {
    const auto inputs = checked("short_convolution", f);
    check_output("short_convolution", "z", z, f);
    call(ctx, &KernelTable::short_convolution_forward, "short_convolution_forward", inputs, z);
}

void short_convolution_backward_input(Context& ctx, const ShortConvolution& f, const Tensor& dz, const Tensor& after,
                                      const Tensor& dp) {
    const auto inputs = checked("short_convolution_backward_input", f);
    check_output("short_convolution_backward_input", "dz", dz, f);
    check_state("short_convolution_backward_input", "after", after, {dz.dim(0), f.taps() - 1, dz.dim(2)});
    check(!after.defined() || dz.dim(1) >= f.taps() - 1,
          "short_convolution_backward_input: what later tokens add needs ", f.taps() - 1, " tokens or more, got ",
          dz.dim(1));
    check(dp.shape() == f.p.shape() && dp.dtype() == f.p.dtype(),
          "short_convolution_backward_input: dp must be like p ", f.p.shape(), " ", f.p.dtype(), ", got ", dp.shape(),
          " ", dp.dtype());
    call(ctx, &KernelTable::short_convolution_backward_input, "short_convolution_backward_input", inputs,
         kernels::ShortConvolutionBackward{.dz = dz,
                                           .db = section(dp, 0, f.gates),
                                           .dc = section(dp, 1, f.gates),
                                           .dx = section(dp, 2, f.gates),
                                           .after = after});
}

Tensor short_convolution_backward_before(Context& ctx, const ShortConvolution& f, const Tensor& dz) {
    const auto inputs = checked("short_convolution_backward_before", f);
    check_output("short_convolution_backward_before", "dz", dz, f);
    const Tensor dbefore = empty(ctx, {dz.dim(0), f.taps() - 1, dz.dim(2)}, DType::f32, Purpose::communication);
    call(ctx, &KernelTable::short_convolution_backward_before, "short_convolution_backward_before", inputs, dz,
         dbefore);
    return dbefore;
}

void short_convolution_backward_weight(Context& ctx, const ShortConvolution& f, const Tensor& dz, const Tensor& dw,
                                       const Tensor& dbias) {
    check(dw.rank() == 3 && dw.shape() == Shape{channels_of(f), 1, dw.dim(2)} && dw.dtype() == DType::f32,
          "short_convolution_backward_weight: dw must be f32 (C, 1, K) for p ", f.p.shape(), ", got ", dw.shape(), " ",
          dw.dtype());
    const auto inputs = checked_inputs("short_convolution_backward_weight", f, dw.dim(2));
    check_output("short_convolution_backward_weight", "dz", dz, f);
    call(ctx, &KernelTable::short_convolution_backward_weight, "short_convolution_backward_weight", inputs, dz,
         dw.reshape({dw.dim(0), dw.dim(2)}), dbias);
}

Tensor short_convolution_state(Context& ctx, const Tensor& p, int64_t taps, const Tensor& before, bool gates) {
    check(p.rank() == 3 && (!gates || p.dim(2) % 3 == 0), "short_convolution_state: p (B, T, ", gates ? "3 C" : "C",
          "), got ", p.shape());
    const int64_t B = p.dim(0), T = p.dim(1), C = p.dim(2) / (gates ? 3 : 1), tokens = std::min(T, taps - 1);
    check_state("short_convolution_state", "before", before, {B, taps - 1, C});
    const Tensor state = empty(ctx, {B, taps - 1, C}, DType::f32), last = p.narrow(1, T - tokens, tokens);
    call(ctx, &KernelTable::short_convolution_state, "short_convolution_state", section(last, 0, gates),
         section(last, 2, gates), before, state);
    return state;
}

}  // namespace tutti::ops
