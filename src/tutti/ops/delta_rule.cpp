#include "tutti/ops/ops.h"

namespace tutti::ops {

using kernels::KernelTable;

namespace {

void check_like(const char* op, const char* name, const Tensor& x, const Shape& shape, DType type) {
    check(x.shape() == shape && x.dtype() == type && x.contiguous(), op, ": ", name, " must be ", type, " ", shape,
          ", got ", x.shape(), " ", x.dtype());
}

kernels::Decay checked(const char* op, const Decay& f) {
    const auto& [x, a_log, dt_bias, range] = f;
    const Shape heads{x.dim(-1)};
    check(x.rank() == 3 && x.contiguous() && a_log.shape() == heads && dt_bias.shape() == heads &&
              a_log.dtype() == x.dtype() && dt_bias.dtype() == x.dtype(),
          op, ": x (B, T, H), a_log and dt_bias (H) must be of one type, got ", x.shape(), " ", x.dtype(), ", ",
          a_log.shape(), " ", a_log.dtype(), " and ", dt_bias.shape(), " ", dt_bias.dtype());
    return {.x = x, .a_log = a_log, .dt_bias = dt_bias, .range = range};
}

// g, or g and dt, or their gradients.
struct Rates {
    View g, dt;
};
Rates rates_of(const char* op, const Tensor& all, const Shape& shape) {
    if (all.rank() == 3) {
        check_like(op, "g", all, shape, DType::f32);
        return {all, {}};
    }
    check_like(op, "g and dt", all, {2, shape[0], shape[1], shape[2]}, DType::f32);
    return {all.narrow(0, 0, 1).view(), all.narrow(0, 1, 1).view()};
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
    check_like(op, "b", f.b, gates, f.corrects ? type : DType::f32);
    check(!f.skip.defined() || !f.corrects, op, ": only the scan of Mamba-2 has a skip");
    if (f.skip.defined()) check_like(op, "skip", f.skip, {gates[2]}, type);
    check(f.positions.shape() == Shape{gates[0], gates[1]} && f.positions.dtype() == DType::i32, op,
          ": positions must be i32 (B, T), got ", f.positions.shape(), " ", f.positions.dtype());
    if (f.before.defined()) check_like(op, "before", f.before, f.state_shape(), DType::f32);
    return {.corrects = f.corrects,
            .query = f.query,
            .key = f.key,
            .value = f.value,
            .g = f.g,
            .b = f.b,
            .skip = f.skip,
            .positions = f.positions,
            .before = f.before};
}

Tensor workspace(Context& ctx, const DeltaRule& f, bool backward) {
    const int64_t floats = call(ctx, &KernelTable::delta_rule_workspace, "delta_rule_workspace", f.key.shape(),
                                f.value.shape(), f.corrects, backward);
    return empty(ctx, {floats}, DType::f32, Purpose::workspace);
}

}  // namespace

Tensor decay(Context& ctx, const Decay& f, bool with_steps) {
    const kernels::Decay inputs = checked("decay", f);
    const Shape shape = f.x.shape();
    const Tensor all = empty(ctx, with_steps ? Shape{2, shape[0], shape[1], shape[2]} : shape, DType::f32);
    const Rates rates = rates_of("decay", all, shape);
    call(ctx, &KernelTable::decay_forward, "decay_forward", inputs, rates.g, rates.dt);
    return all;
}

Tensor decay_backward_input(Context& ctx, const Decay& f, const Tensor& d) {
    const kernels::Decay inputs = checked("decay_backward_input", f);
    const Rates rates = rates_of("decay_backward_input", d, f.x.shape());
    const Tensor dx = empty(ctx, f.x.shape(), f.x.dtype());
    call(ctx, &KernelTable::decay_backward_input, "decay_backward_input", inputs, rates.g, rates.dt, dx);
    return dx;
}

void decay_backward_weight(Context& ctx, const Decay& f, const Tensor& d, const Tensor& da_log,
                           const Tensor& ddt_bias) {
    const kernels::Decay inputs = checked("decay_backward_weight", f);
    const Rates rates = rates_of("decay_backward_weight", d, f.x.shape());
    check_like("decay_backward_weight", "da_log", da_log, f.a_log.shape(), DType::f32);
    check_like("decay_backward_weight", "ddt_bias", ddt_bias, f.a_log.shape(), DType::f32);
    call(ctx, &KernelTable::decay_backward_weight, "decay_backward_weight", inputs, rates.g, rates.dt, da_log,
         ddt_bias);
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

void delta_rule_backward_skip(Context& ctx, const Tensor& dout, const Tensor& value, const Tensor& dskip) {
    constexpr const char* kName = "delta_rule_backward_skip";
    check_like(kName, "dout", dout, value.shape(), value.dtype());
    check_like(kName, "dskip", dskip, {value.dim(2)}, DType::f32);
    call(ctx, &KernelTable::delta_rule_backward_skip, kName, dout, value, dskip);
}

}  // namespace tutti::ops
