#include "tutti/ops/ops.h"

namespace tutti::ops {

using kernels::KernelTable;

namespace {
void check_same(const char* op, const Tensor& a, const Tensor& b) {
    check(a.shape() == b.shape() && a.dtype() == b.dtype(), op, ": needs two tensors of one shape and type, got ",
          a.shape(), " ", a.dtype(), " and ", b.shape(), " ", b.dtype());
    check(a.contiguous() && b.contiguous(), op, ": needs contiguous tensors");
}
Tensor like(Context& ctx, const Tensor& x) { return empty(ctx, x.shape(), x.dtype()); }

// Calls a kernel whose last argument is a new tensor like x, and returns that tensor.
template <class Kernel, class... More>
Tensor computed(Context& ctx, Kernel KernelTable::*entry, const char* name, const Tensor& x, const More&... more) {
    Tensor y = like(ctx, x);
    call(ctx, entry, name, x, more..., y);
    return y;
}
}  // namespace

Tensor empty(Context& ctx, const Shape& shape, DType dtype, Purpose purpose) {
    return Tensor::empty(ctx.device, shape, dtype, purpose);
}

Tensor zeros(Context& ctx, const Shape& shape, DType dtype, Purpose purpose) {
    Tensor y = empty(ctx, shape, dtype, purpose);
    fill(ctx, y, 0);
    return y;
}

Tensor cast(Context& ctx, const Tensor& x, DType dtype, Purpose purpose) {
    Tensor y = empty(ctx, x.shape(), dtype, purpose);
    cast_into(ctx, x, y);
    return y;
}

void cast_into(Context& ctx, const Tensor& x, const Tensor& y) {
    check(x.numel() == y.numel(), "cast: needs tensors of equal size, got ", x.shape(), " and ", y.shape());
    if (x.contiguous() && y.contiguous()) return call(ctx, &KernelTable::cast, "cast", x, y);
    copy(ctx, x.dtype() == y.dtype() ? x : cast(ctx, contiguous(ctx, x), y.dtype()), y);
}

Tensor unshared(Context& ctx, Tensor x) { return x.unique() ? x : cast(ctx, x, x.dtype()); }

Tensor contiguous(Context& ctx, const Tensor& x) {
    if (x.contiguous()) return x;
    const Tensor y = like(ctx, x);
    copy(ctx, x, y);
    return y;
}

void copy(Context& ctx, const Tensor& x, const Tensor& y) {
    check(x.shape() == y.shape() && x.dtype() == y.dtype(), "copy: ", x.shape(), " ", x.dtype(), " into ", y.shape(),
          " ", y.dtype());
    for (const Tensor* t : {&x, &y})
        check(t->rank() == 0 || t->dim(-1) <= 1 || t->view().stride(-1) == 1, "copy: needs a unit inner stride");
    call(ctx, &KernelTable::copy, "copy", x, y);
}

void normal(Context& ctx, const kernels::Normal& numbers) { call(ctx, &KernelTable::normal, "normal", numbers); }

void fill(Context& ctx, const Tensor& y, float value) {
    check(y.contiguous(), "fill: needs a contiguous tensor");
    call(ctx, &KernelTable::fill, "fill", y, value);
}

Tensor add(Context& ctx, const Tensor& a, const Tensor& b) {
    check_same("add", a, b);
    return computed(ctx, &KernelTable::add, "add", a, b);
}

void accumulate(Context& ctx, const Tensor& x, const Tensor& y) {
    check(x.shape() == y.shape() && (y.dtype() == DType::f32 || y.dtype() == x.dtype()),
          "accumulate: y must be f32 or x's type and of its shape, got x ", x.shape(), " ", x.dtype(), ", y ",
          y.shape(), " ", y.dtype());
    call(ctx, &KernelTable::accumulate, "accumulate", x, y);
}

void scale(Context& ctx, const Tensor& x, float factor) { call(ctx, &KernelTable::scale, "scale", x, factor); }

Tensor relu(Context& ctx, const Tensor& x) { return computed(ctx, &KernelTable::relu_forward, "relu_forward", x); }

Tensor relu_backward(Context& ctx, const Tensor& dy, const Tensor& y) {
    check_same("relu_backward", dy, y);
    return computed(ctx, &KernelTable::relu_backward, "relu_backward", dy, y);
}

Tensor gelu(Context& ctx, const Tensor& x) { return computed(ctx, &KernelTable::gelu_forward, "gelu_forward", x); }

Tensor gelu_backward(Context& ctx, const Tensor& dy, const Tensor& x) {
    check_same("gelu_backward", dy, x);
    return computed(ctx, &KernelTable::gelu_backward, "gelu_backward", dy, x);
}

Tensor swiglu(Context& ctx, Gate g, const Tensor& gate, const Tensor& up) {
    check_same("swiglu", gate, up);
    Tensor y = like(ctx, up);
    call(ctx, &KernelTable::swiglu_forward, "swiglu_forward", g, gate, up, y);
    return y;
}

GateAndUp swiglu_backward(Context& ctx, Gate g, const Tensor& dy, const Tensor& gate, const Tensor& up) {
    check_same("swiglu_backward", gate, up);
    check_same("swiglu_backward", dy, up);
    const GateAndUp d{empty(ctx, gate.shape(), gate.dtype()), empty(ctx, up.shape(), up.dtype())};
    call(ctx, &KernelTable::swiglu_backward, "swiglu_backward", g, dy, gate, up, d.gate, d.up);
    return d;
}

GateAndUp gate_and_up_of(const Tensor& x) {
    const int64_t F = x.dim(-1) / 2;
    const Tensor rows = x.reshape({x.view().rows(), 2 * F});
    return {rows.narrow(1, 0, F), rows.narrow(1, F, F)};
}

Tensor swiglu(Context& ctx, Gate g, const Tensor& gate_up) {
    const auto [gate, up] = gate_and_up_of(gate_up);
    Shape shape = gate_up.shape();
    shape[-1] /= 2;
    const Tensor y = empty(ctx, shape, gate_up.dtype());
    call(ctx, &KernelTable::swiglu_forward, "swiglu_forward", g, gate, up, y.reshape(gate.shape()));
    return y;
}

void soft_cap(Context& ctx, const Tensor& x, double cap) {
    check(x.contiguous() && cap >= 0, "soft_cap: needs a contiguous tensor and a cap of at least 0, got ", cap);
    if (cap > 0) call(ctx, &KernelTable::soft_cap, "soft_cap", x, static_cast<float>(cap));
}

Tensor dropout(Context& ctx, const Tensor& x, const kernels::Dropout& mask) {
    check(mask.probability >= 0 && mask.probability < 1, "dropout: the probability must be in [0, 1), got ",
          mask.probability);
    check(mask.row_index.dtype == DType::i64 && mask.row_index.numel() == x.view().rows(),
          "dropout: needs one i64 row index per row, got ", mask.row_index.shape, " for x ", x.shape());
    return computed(ctx, &KernelTable::dropout, "dropout", x, mask);
}

}  // namespace tutti::ops
