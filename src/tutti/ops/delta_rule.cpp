#include "tutti/ops/ops.h"

namespace tutti::ops {

using kernels::KernelTable;

namespace {

void check_decay(const char* op, const Tensor& x, const Tensor& a_log, const Tensor& dt_bias) {
    const Shape heads{x.dim(-1)};
    check(x.rank() == 3 && x.contiguous() && a_log.shape() == heads && dt_bias.shape() == heads &&
              a_log.dtype() == x.dtype() && dt_bias.dtype() == x.dtype(),
          op, ": x (B, T, H), a_log and dt_bias (H) must be of one type, got ", x.shape(), " ", x.dtype(), ", ",
          a_log.shape(), " ", a_log.dtype(), " and ", dt_bias.shape(), " ", dt_bias.dtype());
}

void check_like(const char* op, const char* name, const Tensor& x, const Shape& shape, DType type) {
    check(x.shape() == shape && x.dtype() == type && x.contiguous(), op, ": ", name, " must be ", type, " ", shape,
          ", got ", x.shape(), " ", x.dtype());
}

kernels::DeltaRule checked(const char* op, const DeltaRule& f) {
    const DType type = f.value.dtype();
    check(f.key.rank() == 4 && f.value.rank() == 4 && f.query.shape() == f.key.shape() && f.key.dtype() == type &&
              f.query.dtype() == type && f.key.dim(0) == f.value.dim(0) && f.key.dim(1) == f.value.dim(1) &&
              f.key.dim(2) > 0 && f.value.dim(2) % f.key.dim(2) == 0,
          op,
          ": queries and keys must be (B, T, Hk, Dk) and values (B, T, Hv, Dv) of one type, Hk a divisor of Hv, got ",
          f.query.shape(), ", ", f.key.shape(), " ", f.key.dtype(), " and ", f.value.shape(), " ", type);
    const Shape gates{f.value.dim(0), f.value.dim(1), f.value.dim(2)};
    check_like(op, "g", f.g, gates, DType::f32);
    check_like(op, "b", f.b, gates, type);
    check(f.positions.shape() == Shape{gates[0], gates[1]} && f.positions.dtype() == DType::i32, op,
          ": positions must be i32 (B, T), got ", f.positions.shape(), " ", f.positions.dtype());
    if (f.before.defined()) check_like(op, "before", f.before, f.state_shape(), DType::f32);
    return {.query = f.query,
            .key = f.key,
            .value = f.value,
            .g = f.g,
            .b = f.b,
            .positions = f.positions,
            .before = f.before};
}

Tensor workspace(Context& ctx, const DeltaRule& f, bool backward) {
    const int64_t floats =
        call(ctx, &KernelTable::delta_rule_workspace, "delta_rule_workspace", f.key.shape(), f.value.shape(), backward);
    return empty(ctx, {floats}, DType::f32, Purpose::workspace);
}

}  // namespace

Tensor decay(Context& ctx, const Tensor& x, const Tensor& a_log, const Tensor& dt_bias) {
    check_decay("decay", x, a_log, dt_bias);
    const Tensor g = empty(ctx, x.shape(), DType::f32);
    call(ctx, &KernelTable::decay_forward, "decay_forward", x, a_log, dt_bias, g);
    return g;
}

Tensor decay_backward_input(Context& ctx, const Tensor& dg, const Tensor& x, const Tensor& a_log,
                            const Tensor& dt_bias) {
    check_decay("decay_backward_input", x, a_log, dt_bias);
    check_like("decay_backward_input", "dg", dg, x.shape(), DType::f32);
    const Tensor dx = empty(ctx, x.shape(), x.dtype());
    call(ctx, &KernelTable::decay_backward_input, "decay_backward_input", dg, x, a_log, dt_bias, dx);
    return dx;
}

void decay_backward_weight(Context& ctx, const Tensor& dg, const Tensor& x, const Tensor& a_log, const Tensor& dt_bias,
                           const Tensor& da_log, const Tensor& ddt_bias) {
    check_decay("decay_backward_weight", x, a_log, dt_bias);
    check_like("decay_backward_weight", "dg", dg, x.shape(), DType::f32);
    check_like("decay_backward_weight", "da_log", da_log, a_log.shape(), DType::f32);
    check_like("decay_backward_weight", "ddt_bias", ddt_bias, a_log.shape(), DType::f32);
    call(ctx, &KernelTable::decay_backward_weight, "decay_backward_weight", dg, x, a_log, dt_bias, da_log, ddt_bias);
}

Tensor delta_rule(Context& ctx, const DeltaRule& f, const Tensor& o, bool wanted) {
    kernels::DeltaRule inputs = checked("delta_rule", f);
    check_like("delta_rule", "o", o, f.value.shape(), f.value.dtype());
    const Tensor after = wanted ? empty(ctx, f.state_shape(), DType::f32) : Tensor();
    const Tensor memory = workspace(ctx, f, false);
    inputs.workspace = memory;
    call(ctx, &KernelTable::delta_rule_forward, "delta_rule_forward", inputs, o, after);
    return after;
}

void delta_rule_backward(Context& ctx, const DeltaRule& f, const Tensor& dout, const Tensor& after,
                         const DeltaRuleGradients& d) {
    constexpr const char* kName = "delta_rule_backward";
    kernels::DeltaRule inputs = checked(kName, f);
    check_like(kName, "dout", dout, f.value.shape(), f.value.dtype());
    check_like(kName, "the gradient of queries", d.query, f.key.shape(), f.key.dtype());
    check_like(kName, "the gradient of keys", d.key, f.key.shape(), f.key.dtype());
    check_like(kName, "the gradient of values", d.value, f.value.shape(), f.value.dtype());
    check_like(kName, "the gradient of g", d.g, f.g.shape(), DType::f32);
    check_like(kName, "the gradient of b", d.b, f.b.shape(), f.b.dtype());
    if (after.defined()) check_like(kName, "the gradient after the tokens", after, f.state_shape(), DType::f32);
    if (d.before.defined()) check_like(kName, "the gradient before the tokens", d.before, f.state_shape(), DType::f32);
    const Tensor memory = workspace(ctx, f, true);
    inputs.workspace = memory;
    call(ctx, &KernelTable::delta_rule_backward, kName, inputs,
         kernels::DeltaRuleBackward{.dout = dout,
                                    .after = after,
                                    .dquery = d.query,
                                    .dkey = d.key,
                                    .dvalue = d.value,
                                    .dg = d.g,
                                    .db = d.b,
                                    .dbefore = d.before});
}

}  // namespace tutti::ops
