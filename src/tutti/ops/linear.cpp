#include "tutti/ops/ops.h"
#include "tutti/ops/weight_forms.h"

namespace tutti::ops {

using kernels::Epilogue;
using kernels::Gemm;
using kernels::KernelTable;

namespace {

View as_matrix(const Tensor& x) {
    check(x.contiguous(), "linear: needs a contiguous tensor, got shape ", x.shape());
    return View(x.view().data, x.dtype(), {x.view().rows(), x.view().columns()});
}

// The same for rows that may be apart: columns of a wider matrix.
View as_rows(const Tensor& x) {
    const View v = x.view();
    if (v.contiguous()) return as_matrix(x);
    bool even = v.stride(-1) == 1;
    for (int d = 0; d + 2 < x.rank(); ++d) even = even && v.stride(d) == v.stride(d + 1) * v.shape[d + 1];
    check(even, "linear: needs rows at equal distances, got shape ", x.shape());
    View rows(v.data, x.dtype(), {v.rows(), v.columns()});
    rows.strides[0] = v.stride(-2);
    return rows;
}

View rows_of(View x, int64_t first, int64_t rows) {
    x.data = static_cast<std::byte*>(x.data) + first * x.stride(0) * size_of(x.dtype);
    x.shape[0] = rows;
    return x;
}

Shape with_last(const Shape& shape, int64_t size) {
    Shape result = shape;
    result[-1] = size;
    return result;
}

}  // namespace

const Tensor& numbers(const char* op, const Operand& x) {
    check(!x.scales.defined(), op, ": no kernel multiplies operands with scales, got ", x.values.shape(), " ",
          x.values.dtype(), " with scales ", x.scales.shape());
    return x.values;
}

Gemm gemm_of(GemmRole role, const View& x, const View& w, const View& y) {
    switch (role) {
        case GemmRole::forward: return {.a = x, .b = w, .c = y, .transpose_b = true};
        case GemmRole::input_gradient: return {.a = y, .b = w, .c = x, .gradient = true};
        case GemmRole::weight_gradient:
            return {.a = y, .b = x, .c = w, .transpose_a = true, .accumulate = true, .gradient = true};
    }
    return {};
}

void gemm(Context& ctx, Gemm g) {
    Tensor workspace;
    if (const int64_t values = ctx.kernels.gemm_workspace ? ctx.kernels.gemm_workspace(ctx.device.stream(), g) : 0)
        g.workspace = workspace = empty(ctx, {values}, DType::f32, Purpose::workspace);
    call(ctx, &KernelTable::gemm, "gemm", g);
}

void compute_rows(Context& ctx, const Product& whole, int64_t first, int64_t rows, const View& to) {
    const Gemm& product = whole.gemm;
    check<UsageError>(ctx.kernels.gemm_by_rows, "the ", ctx.kernels.name,
                      " kernels make no products by blocks of rows; set [parallel] tp_overlap = 1");
    check(!product.transpose_a && first >= 0 && rows >= 0 && first + rows <= product.c.shape[0], "rows [", first, ", ",
          first + rows, ") of a product of ", product.c.shape[0]);
    if (rows == 0) return;
    Gemm block = product;
    block.whole_rows = product.c.shape[0];
    for (View* view : {&block.a, &block.c, &block.x, &block.gate, &block.dup})
        if (view->defined()) *view = rows_of(*view, first, rows);
    if (to.defined()) block.c = to;
    multiply_by_weight(ctx, block, whole.w.forms);
}

namespace {

// Computes the product of a and w now, or appends it to `later`.
void compute(Context& ctx, const Gemm& product, const Operand& a, const Operand& w, Products* later) {
    if (later == nullptr) return multiply_by_weight(ctx, product, w.forms);
    later->push_back({product, a, w});
}

// y = x w^T + b, which has yet to be computed.
struct PendingLinear {
    Tensor y;
    Gemm product;
};

void check_layer(const char* name, const Operand& of_x, const Operand& of_w, const Tensor* b) {
    const Tensor &x = numbers(name, of_x), &w = numbers(name, of_w);
    check(w.rank() == 2 && x.dim(-1) == w.dim(1) && x.dtype() == w.dtype(), name,
          ": x (..., K) and w (N, K) of one type, got ", x.shape(), " ", x.dtype(), " and ", w.shape(), " ", w.dtype());
    check(b == nullptr || (b->rank() == 1 && b->dim(0) == w.dim(0)), name, ": the bias must have ", w.dim(0),
          " values");
}

Gemm forward_product(const Operand& x, const Operand& w, const Tensor* b, const View& y) {
    Gemm product = gemm_of(GemmRole::forward, as_matrix(x.values), w.values, y);
    if (b) product.bias = *b;
    return product;
}

PendingLinear forward_of(Context& ctx, const char* name, const Operand& x, const Operand& w, const Tensor* b) {
    check_layer(name, x, w, b);
    PendingLinear f{empty(ctx, with_last(x.values.shape(), w.values.dim(0)), x.values.dtype()), {}};
    f.product = forward_product(x, w, b, as_matrix(f.y));
    return f;
}

Shape input_shape(const char* name, const Operand& of_dy, const Operand& of_w) {
    const Tensor &dy = numbers(name, of_dy), &w = numbers(name, of_w);
    check(w.rank() == 2 && dy.dim(-1) == w.dim(0) && dy.dtype() == w.dtype(), name,
          ": dy (..., N) and w (N, K) of one type, got ", dy.shape(), " ", dy.dtype(), " and ", w.shape(), " ",
          w.dtype());
    return with_last(dy.shape(), w.dim(1));
}

// An epilogue's second input, which must have `shape`.
View beside(const char* name, const Tensor& saved, const Shape& shape, DType dtype) {
    check(saved.shape() == shape && saved.dtype() == dtype, name, ": what was saved must be ", shape, " ", dtype,
          ", got ", saved.shape(), " ", saved.dtype());
    return as_matrix(saved);
}

Gemm swiglu_product(const Operand& dy, const Operand& w, const View& gate, const View& up, const View& dgate,
                    const View& dup) {
    Gemm product = gemm_of(GemmRole::input_gradient, dgate, w.values, as_matrix(dy.values));
    product.epilogue = Epilogue::swiglu_backward;
    product.gate = gate;
    product.x = up;
    product.dup = dup;
    return product;
}

Activated activated(Context& ctx, PendingLinear f, const Operand& x, const Operand& w, Epilogue epilogue, bool kept,
                    Products* later) {
    Activated r{kept ? empty(ctx, f.y.shape(), f.y.dtype()) : Tensor{}, f.y};
    f.product.epilogue = epilogue;
    if (kept) f.product.x = as_matrix(r.z);
    compute(ctx, f.product, x, w, later);
    return r;
}

}  // namespace

Tensor linear(Context& ctx, const Operand& x, const Operand& w, const Tensor* b, Products* later) {
    const PendingLinear f = forward_of(ctx, "linear", x, w, b);
    compute(ctx, f.product, x, w, later);
    return f.y;
}

void linear_into(Context& ctx, const Operand& x, const Operand& w, const Tensor* b, const Tensor& y, Products* later) {
    check_layer("linear_into", x, w, b);
    const Shape shape = with_last(x.values.shape(), w.values.dim(0));
    const DType type = x.values.dtype();
    check(y.shape() == shape && y.dtype() == type, "linear_into: y must be ", shape, " ", type, ", got ", y.shape(),
          " ", y.dtype());
    compute(ctx, forward_product(x, w, b, as_rows(y)), x, w, later);
}

Activated linear_gelu(Context& ctx, const Operand& x, const Operand& w, const Tensor* b, bool kept, Products* later) {
    return activated(ctx, forward_of(ctx, "linear_gelu", x, w, b), x, w, Epilogue::gelu, kept, later);
}

Activated linear_swiglu(Context& ctx, const Tensor& gate, const Operand& x, const Operand& w, const Tensor* b,
                        bool kept, Products* later) {
    PendingLinear f = forward_of(ctx, "linear_swiglu", x, w, b);
    f.product.gate = beside("linear_swiglu", gate, f.y.shape(), f.y.dtype());
    return activated(ctx, std::move(f), x, w, Epilogue::swiglu, kept, later);
}

Tensor linear_backward_input(Context& ctx, const Operand& dy, const Operand& w, Tensor sum, Products* later) {
    const Shape shape = input_shape("linear_backward_input", dy, w);
    const DType type = dy.values.dtype();
    check(!sum.defined() || (sum.shape() == shape && sum.dtype() == type), "linear_backward_input: the sum must be ",
          shape, " ", type, ", got ", sum.shape(), " ", sum.dtype());
    const bool in_place = sum.defined() && sum.unique();
    check(!later || !sum.defined() || in_place, "linear_backward_input: another handle shares the memory of the sum");
    const Tensor dx = in_place ? sum : empty(ctx, shape, type);
    Gemm product = gemm_of(GemmRole::input_gradient, as_matrix(dx), w.values, as_rows(dy.values));
    product.accumulate = in_place;
    compute(ctx, product, dy, w, later);
    return in_place || !sum.defined() ? dx : add(ctx, sum, dx);
}

Tensor linear_gelu_backward(Context& ctx, const Operand& dy, const Operand& w, const Tensor& z, Products* later) {
    const Shape shape = input_shape("linear_gelu_backward", dy, w);
    const Tensor dz = empty(ctx, shape, dy.values.dtype());
    Gemm product = gemm_of(GemmRole::input_gradient, as_matrix(dz), w.values, as_matrix(dy.values));
    product.epilogue = Epilogue::gelu_backward;
    product.x = beside("linear_gelu_backward", z, shape, dz.dtype());
    compute(ctx, product, dy, w, later);
    return dz;
}

GateAndUp linear_swiglu_backward(Context& ctx, const Operand& dy, const Operand& w, const Tensor& gate,
                                 const Tensor& up, Products* later) {
    const Shape shape = input_shape("linear_swiglu_backward", dy, w);
    const DType type = dy.values.dtype();
    const GateAndUp d{empty(ctx, shape, type), empty(ctx, shape, type)};
    const View gates = beside("linear_swiglu_backward", gate, shape, type);
    const View ups = beside("linear_swiglu_backward", up, shape, type);
    compute(ctx, swiglu_product(dy, w, gates, ups, as_matrix(d.gate), as_matrix(d.up)), dy, w, later);
    return d;
}

Tensor linear_swiglu_backward(Context& ctx, const Operand& dy, const Operand& w, const Tensor& gate_up,
                              Products* later) {
    Shape shape = input_shape("linear_swiglu_backward", dy, w);
    shape[-1] *= 2;
    beside("linear_swiglu_backward", gate_up, shape, dy.values.dtype());
    const Tensor d = empty(ctx, shape, dy.values.dtype());
    const GateAndUp saved = gate_and_up_of(gate_up), parts = gate_and_up_of(d);
    compute(ctx, swiglu_product(dy, w, saved.gate, saved.up, parts.gate, parts.up), dy, w, later);
    return d;
}

void linear_backward_weight(Context& ctx, const Operand& of_dy, const Operand& of_x, const Tensor& dw,
                            bool accumulate) {
    const Tensor &dy = numbers("linear_backward_weight", of_dy), &x = numbers("linear_backward_weight", of_x);
    check(dw.rank() == 2 && dy.dim(-1) == dw.dim(0) && x.dim(-1) == dw.dim(1) && dw.dtype() == DType::f32 &&
              dy.view().rows() == x.view().rows(),
          "linear_backward_weight: dy (..., N), x (..., K), dw (N, K) f32, got ", dy.shape(), ", ", x.shape(), ", ",
          dw.shape(), " ", dw.dtype());
    Gemm product = gemm_of(GemmRole::weight_gradient, as_matrix(x), dw, as_rows(dy));
    product.accumulate = accumulate;
    gemm(ctx, product);
}

void bias_backward(Context& ctx, const Tensor& dy, const Tensor& db) {
    check(db.rank() == 1 && db.dim(0) == dy.dim(-1) && db.dtype() == DType::f32, "bias_backward: dy ", dy.shape(),
          " needs db of ", dy.dim(-1), " f32 values, got ", db.shape());
    call(ctx, &KernelTable::bias_backward, "bias_backward", as_matrix(dy), db);
}

Tensor embedding(Context& ctx, const Tensor& tokens, const Tensor& w, int64_t first_row) {
    check(tokens.dtype() == DType::i32 && w.rank() == 2, "embedding: tokens i32 and w (V, C), got ", tokens.dtype(),
          " ", tokens.shape(), " and ", w.shape());
    Shape shape = tokens.shape();
    shape.push_back(w.dim(1));
    Tensor y = empty(ctx, shape, w.dtype());
    call(ctx, &KernelTable::embedding_forward, "embedding_forward", tokens, w, first_row, as_matrix(y));
    return y;
}

void embedding_backward(Context& ctx, const Tensor& tokens, const Tensor& dy, const Tensor& dw, int64_t first_row) {
    check(dw.rank() == 2 && dy.dim(-1) == dw.dim(1) && dy.view().rows() == tokens.numel() && dw.dtype() == DType::f32,
          "embedding_backward: tokens ", tokens.shape(), ", dy ", dy.shape(), ", dw ", dw.shape(), " f32 do not fit");
    call(ctx, &KernelTable::embedding_backward, "embedding_backward", tokens, as_matrix(dy), first_row, dw);
}

}  // namespace tutti::ops
