#include <cmath>

#include "tutti/ops/ops.h"

namespace tutti::ops {

using kernels::KernelTable;

namespace {

Shape with_width(Shape shape, int64_t D) {
    shape[3] = D;
    return shape;
}

void check_inputs(const char* op, const Tensor& q, const Tensor& k, const Tensor& v,
                  const kernels::AttentionMask& mask) {
    check(q.rank() == 4 && k.rank() == 4 && v.rank() == 4 && with_width(k.shape(), v.dim(3)) == v.shape() &&
              v.dim(3) <= k.dim(3) && q.dim(0) == k.dim(0) && q.dim(3) == k.dim(3) && k.dim(2) > 0 &&
              q.dim(2) % k.dim(2) == 0,
          op, ": q (B, Tq, H, D), k (B, Tk, Hkv, D), v (B, Tk, Hkv, Dv) with Hkv dividing H and Dv <= D, got ",
          q.shape(), ", ", k.shape(), ", ", v.shape());
    check(q.dtype() == k.dtype() && q.dtype() == v.dtype(), op, ": q, k, v must have one type, got ", q.dtype(), ", ",
          k.dtype(), ", ", v.dtype());
    check(mask.window >= 0, op, ": window must be 0 (none) or more keys, got ", mask.window);
    check(!mask.first_key.defined() ||
              (mask.first_key.dtype == DType::i32 && mask.first_key.shape == Shape{q.dim(0), q.dim(1)}),
          op, ": first_key must be i32 (B, Tq) for q ", q.shape(), ", got ", mask.first_key.shape);
}

void check_result(const char* op, const Tensor& q, const char* name, DType type) {
    check(type == q.dtype() || type == DType::f32, op, ": ", name, " must be f32 or ", q.dtype(), " like q, got ",
          type);
}

float scale_of(const Scores& scores, const Tensor& q) {
    return scores.scale > 0 ? static_cast<float>(scores.scale) : 1.0f / std::sqrt(static_cast<float>(q.dim(3)));
}

Tensor workspace(Context& ctx, const Tensor& q, const Tensor& k, bool backward) {
    const auto size = ctx.kernels.attention_workspace;
    const int64_t values = size ? size(ctx.device.stream(), q.shape(), k.shape(), backward) : 0;
    return empty(ctx, {values}, DType::f32, Purpose::workspace);
}

}  // namespace

RopeTable rope_table(Context& ctx, int64_t positions, const Tensor& frequencies, double amplitude) {
    check(frequencies.rank() == 1 && frequencies.dtype() == DType::f64 && frequencies.contiguous(),
          "rope_table: frequencies must be f64 (n/2), got ", frequencies.shape(), " ", frequencies.dtype());
    const Shape shape{positions, frequencies.dim(0)};
    RopeTable table{empty(ctx, shape, DType::f32, Purpose::workspace),
                    empty(ctx, shape, DType::f32, Purpose::workspace)};
    call(ctx, &KernelTable::rope_table, "rope_table", frequencies, amplitude, table.cosines, table.sines);
    return table;
}

void rope(Context& ctx, const Tensor& x, const Tensor& positions, const RopeTable& table, bool inverse) {
    const View v = x.view();
    check(x.rank() == 4 && v.stride(3) == 1 && v.stride(0) == x.dim(1) * v.stride(1) && x.dim(3) % 2 == 0,
          "rope: x (B, T, H, D), or heads of a wider one, with even D, got ", x.shape());
    check(positions.dtype() == DType::i32 && positions.numel() == x.dim(0) * x.dim(1),
          "rope: needs one i32 position per row of ", x.shape(), ", got ", positions.shape());
    check(table.cosines.dim(1) * 2 <= x.dim(3), "rope: a table for ", table.cosines.dim(1) * 2,
          " channels of a head, x has ", x.dim(3));
    View flat(v.data, x.dtype(), {x.dim(0) * x.dim(1), x.dim(2), x.dim(3)});
    flat.strides[0] = v.stride(1);
    flat.strides[1] = v.stride(2);
    call(ctx, &KernelTable::rope, "rope", flat, positions, table.cosines, table.sines, inverse, table.adjacent);
}

void copy_to_heads(Context& ctx, const Tensor& x, const Tensor& y) {
    check(x.rank() == 4 && x.dim(2) == 1 && y.rank() == 4 && y.dim(2) > 0 && x.shape() == y.narrow(2, 0, 1).shape() &&
              x.dtype() == y.dtype(),
          "copy_to_heads: x (B, T, 1, D) and y (B, T, H, D) of one type, got ", x.shape(), " ", x.dtype(), " and ",
          y.shape(), " ", y.dtype());
    View repeated = x.view();
    repeated.shape[2] = y.dim(2);
    repeated.strides[2] = 0;
    call(ctx, &KernelTable::copy, "copy", repeated, y);
}

Tensor sum_heads(Context& ctx, const Tensor& y) {
    const View v = y.view();
    check(y.rank() == 4 && v.stride(3) == 1 && v.stride(0) == y.dim(1) * v.stride(1),
          "sum_heads: y (B, T, H, D), or channels of wider heads, got ", y.shape());
    View rows(v.data, y.dtype(), {y.dim(0) * y.dim(1), y.dim(2), y.dim(3)});
    rows.strides[0] = v.stride(1);
    rows.strides[1] = v.stride(2);
    const Tensor x = empty(ctx, {rows.shape[0], y.dim(3)}, y.dtype());
    call(ctx, &KernelTable::sum_heads, "sum_heads", rows, x);
    return x.reshape({y.dim(0), y.dim(1), 1, y.dim(3)});
}

namespace {

// For kernels that take no narrower values: x (B, T, H, Dv) with zeros behind, (B, T, H, D), which change no score, and
// the first Dv channels of a result.
bool widens(Context& ctx, const Tensor& q, const Tensor& v) {
    return v.dim(3) != q.dim(3) && !ctx.kernels.own_value_width;
}
Tensor widened(Context& ctx, const Tensor& x, int64_t D) {
    const Tensor wide = zeros(ctx, with_width(x.shape(), D), x.dtype());
    copy(ctx, x, wide.narrow(3, 0, x.dim(3)));
    return wide;
}
Tensor narrowed(Context& ctx, const Tensor& wide, int64_t Dv) { return contiguous(ctx, wide.narrow(3, 0, Dv)); }

}  // namespace

Attention attention(Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v, const kernels::AttentionMask& mask,
                    const Scores& scores, std::optional<DType> type) {
    check_inputs("attention", q, k, v, mask);
    check_result("attention", q, "y", type.value_or(q.dtype()));
    if (widens(ctx, q, v)) {
        const Attention wide = attention(ctx, q, k, widened(ctx, v, q.dim(3)), mask, scores, type);
        return {narrowed(ctx, wide.y, v.dim(3)), wide.lse};
    }
    Attention r{empty(ctx, with_width(q.shape(), v.dim(3)), type.value_or(q.dtype())),
                empty(ctx, {q.dim(0), q.dim(2), q.dim(1)}, DType::f32)};
    const Tensor scratch = workspace(ctx, q, k, false);
    call(ctx, &KernelTable::attention_forward, "attention_forward",
         kernels::AttentionForward{.q = q,
                                   .k = k,
                                   .v = v,
                                   .o = r.y,
                                   .lse = r.lse,
                                   .scale = scale_of(scores, q),
                                   .cap = static_cast<float>(scores.cap),
                                   .mask = mask,
                                   .workspace = scratch});
    return r;
}

void attention_merge(Context& ctx, const Attention& sum, const Attention& part) {
    check(sum.y.rank() == 4 && sum.y.shape() == part.y.shape() && sum.lse.shape() == part.lse.shape() &&
              sum.lse.shape() == Shape{sum.y.dim(0), sum.y.dim(2), sum.y.dim(1)},
          "attention_merge: y (B, T, H, D) and lse (B, H, T), got ", sum.y.shape(), ", ", sum.lse.shape(), " and ",
          part.y.shape(), ", ", part.lse.shape());
    for (const Tensor* x : {&sum.y, &sum.lse, &part.y, &part.lse})
        check(x->dtype() == DType::f32, "attention_merge: parts are f32, got ", x->dtype());
    call(ctx, &KernelTable::attention_merge, "attention_merge", sum.y, sum.lse, part.y, part.lse);
}

namespace {

void check_sinks(const char* op, const Attention& all, const Tensor& sinks) {
    const Tensor& y = all.y;
    check(y.rank() == 4 && y.contiguous() && all.lse.shape() == Shape{y.dim(0), y.dim(2), y.dim(1)} &&
              sinks.shape() == Shape{y.dim(2)} && sinks.dtype() == y.dtype(),
          op, ": y (B, T, H, D), contiguous, lse (B, H, T) and sinks (H) of y's type, got ", y.shape(), " ", y.dtype(),
          ", ", all.lse.shape(), " and ", sinks.shape(), " ", sinks.dtype());
}

}  // namespace

void attention_sinks(Context& ctx, const Attention& all, const Tensor& sinks) {
    check_sinks("attention_sinks", all, sinks);
    call(ctx, &KernelTable::attention_sinks, "attention_sinks", all.y, all.lse, sinks);
}

void attention_sinks_backward(Context& ctx, const Tensor& dy, const Attention& forward, const Tensor& sinks,
                              const Tensor& dsinks) {
    constexpr const char* kName = "attention_sinks_backward";
    check_sinks(kName, forward, sinks);
    check(dy.shape() == forward.y.shape() && dy.dtype() == forward.y.dtype() && dy.contiguous() &&
              dsinks.shape() == sinks.shape() && dsinks.dtype() == DType::f32,
          kName, ": dy like y ", forward.y.shape(), " ", forward.y.dtype(), " and dsinks ", sinks.shape(), " f32, got ",
          dy.shape(), " ", dy.dtype(), " and ", dsinks.shape(), " ", dsinks.dtype());
    call(ctx, &KernelTable::attention_sinks_backward, kName, dy, forward.y, forward.lse, sinks, dsinks);
}

void attention_backward(Context& ctx, const Tensor& dy, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Attention& forward, const kernels::AttentionMask& mask, const Tensor& dq,
                        const Tensor& dk, const Tensor& dv, bool accumulate, const Scores& scores) {
    check_inputs("attention_backward", q, k, v, mask);
    check(dy.shape() == with_width(q.shape(), v.dim(3)) && dq.shape() == q.shape() && dk.shape() == k.shape() &&
              dv.shape() == v.shape(),
          "attention_backward: gradients must have the shapes of q ", q.shape(), " and k ", k.shape());
    check(dy.dtype() == q.dtype(), "attention_backward: dy must be ", q.dtype(), " like q, got ", dy.dtype());
    check_result("attention_backward", q, "y", forward.y.dtype());
    for (const Tensor* x : {&dq, &dk, &dv}) {
        check_result("attention_backward", q, "a gradient", x->dtype());
        check(x->dtype() == (accumulate ? DType::f32 : dq.dtype()),
              "attention_backward: dq, dk and dv must have one type, f32 where they are added to, got ", x->dtype());
    }
    if (widens(ctx, q, v)) {
        const int64_t D = q.dim(3);
        const Tensor wide = accumulate ? widened(ctx, dv, D) : empty(ctx, with_width(v.shape(), D), dv.dtype());
        attention_backward(ctx, widened(ctx, dy, D), q, k, widened(ctx, v, D),
                           {widened(ctx, forward.y, D), forward.lse}, mask, dq, dk, wide, accumulate, scores);
        return copy(ctx, wide.narrow(3, 0, v.dim(3)), dv);
    }
    const Tensor scratch = workspace(ctx, q, k, true);
    call(ctx, &KernelTable::attention_backward, "attention_backward",
         kernels::AttentionBackward{.q = q,
                                    .k = k,
                                    .v = v,
                                    .o = forward.y,
                                    .lse = forward.lse,
                                    .dy = dy,
                                    .dq = dq,
                                    .dk = dk,
                                    .dv = dv,
                                    .scale = scale_of(scores, q),
                                    .cap = static_cast<float>(scores.cap),
                                    .mask = mask,
                                    .accumulate = accumulate,
                                    .workspace = scratch});
}

}  // namespace tutti::ops
