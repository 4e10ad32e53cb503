#include "tutti/kernels/epilogue.h"
#include "tutti/ops/ops.h"
#include "tutti/ops/quantize.h"
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

// The numbers of an operand as a matrix. Codes are put in their place by multiply(), so only the shape counts then.
View matrix_of(const Operand& x) {
    if (!x.coded()) return as_matrix(x.values);
    const int64_t columns = x.shape()[-1];
    return {x.values.view().data, x.type(), {x.shape().numel() / std::max<int64_t>(columns, 1), columns}};
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
    check(!x.coded(), op, ": takes no codes, got ", x.values.shape(), " ", x.values.dtype(), " with scales ",
          x.scales.shape());
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
    call(ctx, &KernelTable::gemm, size_of(g.a.dtype) == 1 ? "gemm_of_codes" : "gemm", g);
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

// The product with factors in f32, where c may be bf16: its sums, and then what the product adds and applies.
void multiply_in_f32(Context& ctx, const Gemm& g) {
    if (g.c.dtype == DType::f32) return gemm(ctx, g);
    const Tensor sums = empty(ctx, {g.c.shape[0], g.c.shape[1]}, DType::f32, Purpose::workspace);
    Gemm product = g;
    product.epilogue = Epilogue::none;
    product.c = sums;
    product.accumulate = false;
    Tensor bias;
    if (g.bias.defined() && g.bias.dtype != DType::f32) {
        bias = empty(ctx, g.bias.shape, DType::f32, Purpose::workspace);
        call(ctx, &KernelTable::cast, "cast", g.bias, bias.view());
        product.bias = bias;
    }
    gemm(ctx, product);
    const View z = kernels::without_epilogue(g).c;
    if (g.accumulate) call(ctx, &KernelTable::accumulate, "accumulate", z, sums.view());
    call(ctx, &KernelTable::cast, "cast", sums.view(), z);
    kernels::apply_epilogue(ctx.kernels, ctx.device.stream(), g);
}

// Codes are decoded, unless a kernel multiplies them: with powers of two as divisors their numbers are exact in bf16.
void multiply(Context& ctx, Gemm g, const Operand& a, const Operand& b) {
    if (!a.coded() && !b.coded()) return multiply_by_weight(ctx, g, b.forms);
    if (a.coding.direct && b.coding.direct)
        return gemm(ctx, product_of_codes(g, coded_matrices(a).front(), coded_matrices(b).front()));
    const auto inexact = [](const Operand& x) { return x.coded() && !x.coding.powers_of_two; };
    const DType type = inexact(a) || inexact(b) ? DType::f32 : a.type();
    const Tensor left = decoded(ctx, a, type), right = decoded(ctx, b, type);
    g.a = as_matrix(left);
    g.b = as_matrix(right);
    type == a.type() ? multiply_by_weight(ctx, g, b.forms) : multiply_in_f32(ctx, g);
}

// Computes the product of a and w now, or appends it to `later`.
void compute(Context& ctx, const Gemm& product, const Operand& a, const Operand& w, Products* later) {
    if (later == nullptr) return multiply(ctx, product, a, w);
    numbers("a product by blocks of rows", a), numbers("a product by blocks of rows", w);
    later->push_back({product, a, w});
}

// y = x w^T + b, which has yet to be computed.
struct PendingLinear {
    Tensor y;
    Gemm product;
};

void check_layer(const char* name, const Operand& of_x, const Operand& of_w, const Tensor* b) {
    const Shape &x = of_x.shape(), &w = of_w.shape();
    check(w.rank() == 2 && x[-1] == w[1] && of_x.type() == of_w.type(), name,
          ": x (..., K) and w (N, K) of one type, got ", x, " ", of_x.type(), " and ", w, " ", of_w.type());
    check(b == nullptr || (b->rank() == 1 && b->dim(0) == w[0]), name, ": the bias must have ", w[0], " values");
}

Gemm forward_product(const Operand& x, const Operand& w, const Tensor* b, const View& y) {
    Gemm product = gemm_of(GemmRole::forward, matrix_of(x), matrix_of(w), y);
    if (b) product.bias = *b;
    return product;
}

PendingLinear forward_of(Context& ctx, const char* name, const Operand& x, const Operand& w, const Tensor* b) {
    check_layer(name, x, w, b);
    PendingLinear f{empty(ctx, with_last(x.shape(), w.shape()[0]), x.type()), {}};
    f.product = forward_product(x, w, b, as_matrix(f.y));
    return f;
}

Shape input_shape(const char* name, const Operand& of_dy, const Operand& of_w) {
    const Shape &dy = of_dy.shape(), &w = of_w.shape();
    check(w.rank() == 2 && dy[-1] == w[0] && of_dy.type() == of_w.type(), name,
          ": dy (..., N) and w (N, K) of one type, got ", dy, " ", of_dy.type(), " and ", w, " ", of_w.type());
    return with_last(dy, w[1]);
}

// An epilogue's second input, which must have `shape`.
View beside(const char* name, const Tensor& saved, const Shape& shape, DType dtype) {
    check(saved.shape() == shape && saved.dtype() == dtype, name, ": what was saved must be ", shape, " ", dtype,
          ", got ", saved.shape(), " ", saved.dtype());
    return as_matrix(saved);
}

Gemm swiglu_product(Gate g, const Operand& dy, const Operand& w, const View& gate, const View& up, const View& dgate,
                    const View& dup) {
    Gemm product = gemm_of(GemmRole::input_gradient, dgate, matrix_of(w), matrix_of(dy));
    product.epilogue = Epilogue::swiglu_backward;
    product.activation = g;
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
    const Shape shape = with_last(x.shape(), w.shape()[0]);
    const DType type = x.type();
    check(y.shape() == shape && y.dtype() == type, "linear_into: y must be ", shape, " ", type, ", got ", y.shape(),
          " ", y.dtype());
    compute(ctx, forward_product(x, w, b, as_rows(y)), x, w, later);
}

Activated linear_gelu(Context& ctx, const Operand& x, const Operand& w, const Tensor* b, bool kept, Products* later) {
    return activated(ctx, forward_of(ctx, "linear_gelu", x, w, b), x, w, Epilogue::gelu, kept, later);
}

Activated linear_swiglu(Context& ctx, Gate g, const Tensor& gate, const Operand& x, const Operand& w, const Tensor* b,
                        bool kept, Products* later) {
    PendingLinear f = forward_of(ctx, "linear_swiglu", x, w, b);
    f.product.activation = g;
    f.product.gate = beside("linear_swiglu", gate, f.y.shape(), f.y.dtype());
    return activated(ctx, std::move(f), x, w, Epilogue::swiglu, kept, later);
}

Tensor linear_backward_input(Context& ctx, const Operand& dy, const Operand& w, Tensor sum, Products* later) {
    const Shape shape = input_shape("linear_backward_input", dy, w);
    const DType type = dy.type();
    check(!sum.defined() || (sum.shape() == shape && sum.dtype() == type), "linear_backward_input: the sum must be ",
          shape, " ", type, ", got ", sum.shape(), " ", sum.dtype());
    const bool adds = sum.defined();
    const Tensor dx = adds ? unshared(ctx, std::move(sum)) : empty(ctx, shape, type);
    Gemm product =
        gemm_of(GemmRole::input_gradient, as_matrix(dx), matrix_of(w), dy.coded() ? matrix_of(dy) : as_rows(dy.values));
    product.accumulate = adds;
    compute(ctx, product, dy, w, later);
    return dx;
}

Tensor linear_gelu_backward(Context& ctx, const Operand& dy, const Operand& w, const Tensor& z, Products* later) {
    const Shape shape = input_shape("linear_gelu_backward", dy, w);
    const Tensor dz = empty(ctx, shape, dy.type());
    Gemm product = gemm_of(GemmRole::input_gradient, as_matrix(dz), matrix_of(w), matrix_of(dy));
    product.epilogue = Epilogue::gelu_backward;
    product.x = beside("linear_gelu_backward", z, shape, dz.dtype());
    compute(ctx, product, dy, w, later);
    return dz;
}

GateAndUp linear_swiglu_backward(Context& ctx, Gate g, const Operand& dy, const Operand& w, const Tensor& gate,
                                 const Tensor& up, Products* later) {
    const Shape shape = input_shape("linear_swiglu_backward", dy, w);
    const DType type = dy.type();
    const GateAndUp d{empty(ctx, shape, type), empty(ctx, shape, type)};
    const View gates = beside("linear_swiglu_backward", gate, shape, type);
    const View ups = beside("linear_swiglu_backward", up, shape, type);
    compute(ctx, swiglu_product(g, dy, w, gates, ups, as_matrix(d.gate), as_matrix(d.up)), dy, w, later);
    return d;
}

Tensor linear_swiglu_backward(Context& ctx, Gate g, const Operand& dy, const Operand& w, const Tensor& gate_up,
                              Products* later) {
    Shape shape = input_shape("linear_swiglu_backward", dy, w);
    shape[-1] *= 2;
    beside("linear_swiglu_backward", gate_up, shape, dy.type());
    const Tensor d = empty(ctx, shape, dy.type());
    const GateAndUp saved = gate_and_up_of(gate_up), parts = gate_and_up_of(d);
    compute(ctx, swiglu_product(g, dy, w, saved.gate, saved.up, parts.gate, parts.up), dy, w, later);
    return d;
}

void linear_backward_weight(Context& ctx, const Operand& of_dy, const Operand& of_x, const Tensor& dw,
                            bool accumulate) {
    const Shape &dy = of_dy.shape(), &x = of_x.shape();
    check(dw.rank() == 2 && dy[-1] == dw.dim(0) && x[-1] == dw.dim(1) && dw.dtype() == DType::f32 &&
              dy.numel() / std::max<int64_t>(dy[-1], 1) == x.numel() / std::max<int64_t>(x[-1], 1),
          "linear_backward_weight: dy (..., N), x (..., K), dw (N, K) f32, got ", dy, ", ", x, ", ", dw.shape(), " ",
          dw.dtype());
    Gemm product = gemm_of(GemmRole::weight_gradient, matrix_of(of_x), dw,
                           of_dy.coded() ? matrix_of(of_dy) : as_rows(of_dy.values));
    product.accumulate = accumulate;
    multiply(ctx, product, of_dy, of_x);
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
