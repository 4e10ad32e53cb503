#include <algorithm>
#include <numeric>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/kernels/groups.h"
#include "tutti/ops/ops.h"
#include "tutti/ops/quantize.h"

namespace tutti::ops {

using kernels::Epilogue;
using kernels::GroupedGemm;
using kernels::KernelTable;
using kernels::Routing;

namespace {

void check_matrix(const char* op, const char* name, const Tensor& x, const Shape& shape, DType dtype) {
    check(x.defined() && x.shape() == shape && x.dtype() == dtype && x.contiguous(), op, ": ", name, " must be ", shape,
          " ", dtype, " and contiguous, got ", x.defined() ? x.shape() : Shape{}, " ", x.defined() ? x.dtype() : dtype);
}

void check_routing(const char* op, const Tensor& logits, int64_t k, const Routing& how) {
    check(logits.rank() == 2 && logits.dtype() == DType::f32 && logits.contiguous(), op,
          ": logits must be (N, E) f32 and contiguous, got ", logits.shape(), " ", logits.dtype());
    const int64_t E = logits.dim(1), groups = how.groups, chosen = how.chosen_groups;
    check(E <= kernels::kMostExperts, op, ": ", E, " experts; ", kernels::kMostExperts, " is the most");
    check(k >= 1 && k <= E, op, ": each row goes to ", k, " of ", E, " experts; choose 1 to ", E);
    check(groups >= 1 && E % groups == 0, op, ": ", E, " experts in ", groups,
          " equal groups; choose a divisor of the number of experts");
    check(chosen >= 1 && chosen <= groups && k <= chosen * (E / groups), op, ": ", k, " experts of ", chosen,
          " chosen groups, of ", groups, " groups of ", E / groups, "; choose groups that have that many");
    check(how.group_best >= 1 && how.group_best <= E / groups, op, ": a group of ", E / groups,
          " experts is judged by its best ", how.group_best, "; choose 1 to ", E / groups);
}

void check_combined(const char* op, const Tensor& x, const Tensor& rows, const Tensor& weights) {
    check(x.rank() == 2 && x.contiguous() && rows.rank() == 2 && rows.dtype() == DType::i32 && rows.contiguous(), op,
          ": x (M, C) and rows (N, k) i32, got ", x.shape(), " and ", rows.shape(), " ", rows.dtype());
    if (weights.defined()) check_matrix(op, "weights", weights, rows.shape(), DType::f32);
}

}  // namespace

Routed route(Context& ctx, const Tensor& logits, const Tensor& bias, int64_t k, const Routing& how, bool shares) {
    check_routing("route", logits, k, how);
    const int64_t N = logits.dim(0), E = logits.dim(1);
    if (bias.defined()) check_matrix("route", "the bias", bias, {E}, DType::f32);
    const Routed r{.experts = empty(ctx, {N, k}, DType::i32),
                   .weights = empty(ctx, {N, k}, DType::f32),
                   .shares = shares ? empty(ctx, {N, E}, DType::f32) : Tensor(),
                   .entropy = empty(ctx, {N}, DType::f32),
                   .log_sum = empty(ctx, {N}, DType::f32)};
    Routing routing = how;
    routing.logits = logits;
    routing.bias = bias;
    routing.experts = r.experts;
    routing.weights = r.weights;
    routing.shares = r.shares;
    routing.entropy = r.entropy;
    routing.log_sum = r.log_sum;
    call(ctx, &KernelTable::route, "route", routing);
    return r;
}

Tensor route_backward(Context& ctx, const Tensor& logits, const Routed& routed, const Routing& how,
                      const Tensor& dweights, const Tensor& dshares, const Tensor& segments, float z_scale) {
    const int64_t k = routed.experts.dim(-1);
    check_routing("route_backward", logits, k, how);
    const int64_t N = logits.dim(0), E = logits.dim(1);
    check_matrix("route_backward", "experts", routed.experts, {N, k}, DType::i32);
    check_matrix("route_backward", "weights", routed.weights, {N, k}, DType::f32);
    check_matrix("route_backward", "log_sum", routed.log_sum, {N}, DType::f32);
    check_matrix("route_backward", "dweights", dweights, {N, k}, DType::f32);
    if (dshares.defined()) check_matrix("route_backward", "dshares", dshares, {dshares.dim(0), E}, DType::f32);
    if (segments.defined()) check_matrix("route_backward", "segments", segments, {N}, DType::i32);
    check(!dshares.defined() || segments.defined() || dshares.dim(0) == 1,
          "route_backward: dshares of several segments, ", dshares.defined() ? dshares.shape() : Shape{},
          ", need `segments`, the row of each");
    kernels::RoutingBackward b{.forward = how, .dweights = dweights, .dshares = dshares, .segments = segments};
    b.forward.logits = logits;
    b.forward.experts = routed.experts;
    b.forward.weights = routed.weights;
    b.forward.log_sum = routed.log_sum;
    b.z_scale = z_scale;
    const Tensor dlogits = empty(ctx, {N, E}, DType::f32);
    b.dlogits = dlogits;
    call(ctx, &KernelTable::route_backward, "route_backward", b);
    return dlogits;
}

void balance(Context& ctx, const Tensor& bias, const Tensor& counts, float mean, float rate) {
    check_matrix("balance", "the bias", bias, {bias.numel()}, DType::f32);
    check_matrix("balance", "counts", counts, bias.shape(), DType::f32);
    call(ctx, &KernelTable::balance, "balance", bias, counts, mean, rate);
}

// --- choices ---

namespace {

void check_choices(const char* op, const char* what, int64_t number) {
    check<SizeError>(number <= kernels::kMostChoices, op, ": ", number, " ", what, "; ", kernels::kMostChoices,
                     " is the most, choose smaller microbatches");
}

void sort(Context& ctx, const char* op, const kernels::SortChoices& s) {
    const Shape& shape = s.choices.shape;
    const int64_t E = s.counts.numel();
    check(s.choices.dtype == DType::i32 && shape.rank() == 2 && s.choices.contiguous() &&
              s.counts.dtype == DType::f32 && s.counts.shape.rank() == 1 && s.counts.contiguous(),
          op, ": choices (N, k) i32 and counts (E) f32, got ", shape, " ", s.choices.dtype, " and ", s.counts.shape,
          " ", s.counts.dtype);
    check(E >= 1 && E <= kernels::kMostExperts && s.owners >= 1 && E % s.owners == 0, op, ": ", E, " experts of ",
          s.owners, " owners; at most ", kernels::kMostExperts, " experts, and equally many for each owner");
    check_choices(op, "choices", shape.numel());
    call(ctx, &KernelTable::sort_choices, "sort_choices", s);
}

}  // namespace

SortedChoices sort_choices(Context& ctx, const Tensor& choices, const Tensor& counts, int64_t owners, int64_t copies) {
    const int64_t N = choices.dim(0), k = choices.dim(1);
    const SortedChoices sorted{empty(ctx, {N * k * copies}, DType::i32), empty(ctx, {N, k * copies}, DType::i32)};
    sort(ctx, "sort_choices", {choices, owners, copies, counts, sorted.sent, sorted.slots});
    return sorted;
}

void count_choices(Context& ctx, const Tensor& choices, const Tensor& counts) {
    sort(ctx, "count_choices", {.choices = choices, .counts = counts});
}

Tensor accept_choices(Context& ctx, const Tensor& choices, const Tensor& rows, const Tensor& weights, int64_t experts,
                      int64_t capacity, int64_t first, int64_t N) {
    const int64_t A = choices.dim(0), k = choices.dim(1);
    check(rows.dtype() == DType::i64 && rows.numel() == A && first >= 0 && first + N <= A, "accept_choices: ", A,
          " rows of all ranks, of which those of this rank are ", first, " to ", first + N, "; got the indices of ",
          rows.numel(), " rows, ", rows.dtype());
    if (weights.defined()) check_matrix("accept_choices", "weights", weights, {A, k}, DType::f32);
    const Tensor counts = empty(ctx, {experts}, DType::f32), order = empty(ctx, {A * k}, DType::i32);
    const Tensor accepted = empty(ctx, {N, k}, DType::i32);
    sort(ctx, "accept_choices", {.choices = choices.reshape({A * k, 1}), .counts = counts, .sent = order});
    call(ctx, &KernelTable::accept_choices, "accept_choices",
         kernels::AcceptChoices{.choices = choices,
                                .rows = rows,
                                .weights = weights.defined() ? weights.view() : View(),
                                .order = order,
                                .counts = counts,
                                .capacity = capacity,
                                .first = first,
                                .accepted = accepted});
    return accepted;
}

Arrivals order_arrivals(Context& ctx, const Tensor& counts, int64_t R, int64_t multiple, int64_t padded) {
    check(counts.rank() == 2 && counts.dtype() == DType::f32 && counts.contiguous() && multiple >= 1 && padded >= R,
          "order_arrivals: counts (P, L) f32 and no fewer rows with their padding than without, got ", counts.shape(),
          " ", counts.dtype(), " and ", R, " rows, padded to ", padded);
    check_choices("order_arrivals", "rows with their padding", padded);
    const Arrivals arrivals{empty(ctx, {padded}, DType::i32), empty(ctx, {R}, DType::i32)};
    call(ctx, &KernelTable::order_arrivals, "order_arrivals", counts, multiple, arrivals.order, arrivals.places);
    return arrivals;
}

// --- rows on their way to experts and back ---

Tensor gather_rows(Context& ctx, const Tensor& x, const Tensor& rows) {
    check(x.rank() == 2 && x.contiguous() && rows.rank() == 1 && rows.dtype() == DType::i32,
          "gather_rows: x (N, C) and rows (M) i32, got ", x.shape(), " and ", rows.shape(), " ", rows.dtype());
    const Tensor y = empty(ctx, {rows.dim(0), x.dim(1)}, x.dtype());
    call(ctx, &KernelTable::gather_rows, "gather_rows", x, rows, y);
    return y;
}

Tensor combine_rows(Context& ctx, const Tensor& x, const Tensor& rows, const Tensor& weights) {
    check_combined("combine_rows", x, rows, weights);
    const Tensor y = empty(ctx, {rows.dim(0), x.dim(1)}, x.dtype());
    call(ctx, &KernelTable::combine_rows, "combine_rows", x, rows, weights, y);
    return y;
}

CombineGradients combine_rows_backward(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& rows,
                                       const Tensor& weights) {
    check_combined("combine_rows_backward", x, rows, weights);
    check_matrix("combine_rows_backward", "dy", dy, {rows.dim(0), x.dim(1)}, x.dtype());
    const CombineGradients d{.dx = empty(ctx, x.shape(), x.dtype()),
                             .dweights = weights.defined() ? empty(ctx, rows.shape(), DType::f32) : Tensor()};
    call(ctx, &KernelTable::combine_rows_backward, "combine_rows_backward", dy, x, rows, weights, d.dx, d.dweights);
    return d;
}

// --- the products of experts ---

namespace {

// The matrix, or matrices, of an operand. Codes are put in their place by multiply(), so only the shape counts then.
View view_of(const Operand& x) { return x.coded() ? View(x.values.view().data, x.type(), x.shape()) : x.values.view(); }

// A product for each expert, whose codes have divisors of their own.
void multiply_codes(Context& ctx, const GroupedGemm& grouped, const Operand& a, const Operand& b) {
    const std::vector<CodedMatrix> left = coded_matrices(a), right = coded_matrices(b);
    int64_t first = 0;
    for (size_t e = 0; e < grouped.rows.size(); first += grouped.rows[e++]) {
        kernels::Gemm g = kernels::group_of(grouped, static_cast<int64_t>(e), first);
        g.rows_vary = true;
        if (grouped.rows[e] > 0)
            gemm(ctx, product_of_codes(g, left[e], right[e]));
        else if (g.transpose_a && !g.accumulate)
            call(ctx, &KernelTable::fill, "fill", g.c, 0.0f);
    }
}

void multiply(Context& ctx, GroupedGemm g, const Operand& a, const Operand& b) {
    if (a.coding.direct && b.coding.direct) return multiply_codes(ctx, g, a, b);
    const Tensor left = decoded(ctx, a), right = decoded(ctx, b);
    g.all.a = left;
    g.all.b = right;
    Tensor workspace;
    const auto size = ctx.kernels.grouped_gemm_workspace;
    if (const int64_t values = size ? size(ctx.device.stream(), g) : 0)
        g.all.workspace = workspace = empty(ctx, {values}, DType::f32, Purpose::workspace);
    call(ctx, &KernelTable::grouped_gemm, "grouped_gemm", g);
}

void check_rows(const char* op, const Shape& x, int64_t experts, const GroupRows& rows) {
    const bool sound = std::all_of(rows.begin(), rows.end(), [](int64_t n) { return n >= 0; });
    check(sound && static_cast<int64_t>(rows.size()) == experts, op,
          ": needs a number of rows, 0 or more, for each of ", experts, " experts, got ", rows.size());
    const int64_t sum = std::accumulate(rows.begin(), rows.end(), int64_t{0});
    check(x[0] == sum, op, ": the experts have ", sum, " rows together, of a tensor of shape ", x);
}

bool contiguous(const Operand& x) { return x.coded() || x.values.contiguous(); }

// x (M, K') times w (E, ., .), of which dim `summed` is K'.
void check_product(const char* op, const Operand& of_x, const Operand& of_w, int summed, const GroupRows& rows) {
    const Shape &x = of_x.shape(), &w = of_w.shape();
    check(x.rank() == 2 && w.rank() == 3 && x[1] == w[summed] && of_x.type() == of_w.type() && contiguous(of_x) &&
              contiguous(of_w),
          op, summed == 2 ? ": x (M, K)" : ": dy (M, N)", " and w (E, N, K) of one type and contiguous, got ", x, " ",
          of_x.type(), " and ", w, " ", of_w.type());
    check_rows(op, x, w[0], rows);
}

struct GroupedForward {
    Tensor y;
    GroupedGemm product;
};

GroupedForward grouped_forward(Context& ctx, const char* op, const Operand& x, const Operand& w, const Tensor* b,
                               const GroupRows& rows) {
    check_product(op, x, w, 2, rows);
    const int64_t E = w.shape()[0], N = w.shape()[1];
    if (b != nullptr) check_matrix(op, "the bias", *b, {E, N}, x.type());
    const Tensor y = empty(ctx, {x.shape()[0], N}, x.type());
    GroupedForward f{y, {.all = gemm_of(GemmRole::forward, view_of(x), view_of(w), y), .rows = rows}};
    if (b != nullptr) f.product.all.bias = *b;
    return f;
}

}  // namespace

Tensor grouped_linear(Context& ctx, const Operand& x, const Operand& w, const Tensor* b, const GroupRows& rows) {
    const GroupedForward f = grouped_forward(ctx, "grouped_linear", x, w, b, rows);
    multiply(ctx, f.product, x, w);
    return f.y;
}

Activated grouped_linear_swiglu(Context& ctx, Gate g, const Tensor& gate, const Operand& x, const Operand& w,
                                const Tensor* b, const GroupRows& rows, bool kept) {
    GroupedForward f = grouped_forward(ctx, "grouped_linear_swiglu", x, w, b, rows);
    check_matrix("grouped_linear_swiglu", "the gate", gate, f.y.shape(), f.y.dtype());
    const Activated r{kept ? empty(ctx, f.y.shape(), f.y.dtype()) : Tensor{}, f.y};
    f.product.all.epilogue = Epilogue::swiglu;
    f.product.all.activation = g;
    f.product.all.gate = gate;
    f.product.all.x = r.z;
    multiply(ctx, f.product, x, w);
    return r;
}

Tensor grouped_backward_input(Context& ctx, const Operand& dy, const Operand& w, const GroupRows& rows, Tensor sum) {
    constexpr const char* kName = "grouped_backward_input";
    check_product(kName, dy, w, 1, rows);
    const Shape shape = {dy.shape()[0], w.shape()[2]};
    if (sum.defined()) check_matrix(kName, "the sum", sum, shape, dy.type());
    const bool adds = sum.defined();
    const Tensor dx = adds ? unshared(ctx, std::move(sum)) : empty(ctx, shape, dy.type());
    GroupedGemm g{.all = gemm_of(GemmRole::input_gradient, dx, view_of(w), view_of(dy)), .rows = rows};
    g.all.accumulate = adds;
    multiply(ctx, g, dy, w);
    return dx;
}

GateAndUp grouped_swiglu_backward(Context& ctx, Gate unit, const Operand& dy, const Operand& w, const Tensor& gate,
                                  const Tensor& up, const GroupRows& rows) {
    constexpr const char* kName = "grouped_swiglu_backward";
    check_product(kName, dy, w, 1, rows);
    const Shape shape = {dy.shape()[0], w.shape()[2]};
    check_matrix(kName, "the gate", gate, shape, dy.type());
    check_matrix(kName, "up", up, shape, dy.type());
    const GateAndUp d{empty(ctx, shape, dy.type()), empty(ctx, shape, dy.type())};
    GroupedGemm g{.all = gemm_of(GemmRole::input_gradient, d.gate, view_of(w), view_of(dy)), .rows = rows};
    g.all.epilogue = Epilogue::swiglu_backward;
    g.all.activation = unit;
    g.all.gate = gate;
    g.all.x = up;
    g.all.dup = d.up;
    multiply(ctx, g, dy, w);
    return d;
}

void grouped_backward_weight(Context& ctx, const Operand& of_dy, const Operand& of_x, const Tensor& dw,
                             const GroupRows& rows, bool accumulate) {
    constexpr const char* kName = "grouped_backward_weight";
    const Shape &dy = of_dy.shape(), &x = of_x.shape();
    check(dy.rank() == 2 && x.rank() == 2 && dw.rank() == 3 && dy[1] == dw.dim(1) && x[1] == dw.dim(2) &&
              dw.dtype() == DType::f32 && dy[0] == x[0] && of_dy.type() == of_x.type() && contiguous(of_dy) &&
              contiguous(of_x) && dw.contiguous(),
          kName, ": dy (M, N), x (M, K) of one type, dw (E, N, K) f32, all contiguous, got ", dy, ", ", x, ", ",
          dw.shape(), " ", dw.dtype());
    check_rows(kName, x, dw.dim(0), rows);
    GroupedGemm g{.all = gemm_of(GemmRole::weight_gradient, view_of(of_x), dw, view_of(of_dy)), .rows = rows};
    g.all.accumulate = accumulate;
    multiply(ctx, g, of_dy, of_x);
}

void grouped_bias_backward(Context& ctx, const Tensor& dy, const Tensor& db, const GroupRows& rows) {
    constexpr const char* kName = "grouped_bias_backward";
    check(dy.rank() == 2 && dy.contiguous(), kName, ": dy (M, N), contiguous, got ", dy.shape());
    check_matrix(kName, "db", db, {db.dim(0), dy.dim(1)}, DType::f32);
    check_rows(kName, dy.shape(), db.dim(0), rows);
    for (int64_t e = 0, first = 0; e < db.dim(0); ++e) {
        const int64_t count = rows[to_size(e)];
        if (count > 0) bias_backward(ctx, dy.narrow(0, first, count), db.narrow(0, e, 1).reshape({dy.dim(1)}));
        first += count;
    }
}

}  // namespace tutti::ops
