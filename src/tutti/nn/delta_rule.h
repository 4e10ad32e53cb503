// nn/delta_rule.h: the gated delta rule, and the scan of Mamba-2 (kernels::DeltaRule), as a differentiable function.
// Cut at documents: batch.positions say where they begin. With batch.context the state passes from rank to rank in the
// order of the tokens, forward, and its gradient backwards: the runs of a sequence are computed one after another,
// whatever the order in which ring attention distributes them.
#pragma once

#include "tutti/nn/functions.h"

namespace tutti::nn {

// g = -e^a_log softplus(x + dt_bias), (B, T, H) f32, of x (B, T, H); a_log, dt_bias (H).
Var decay(Tape& tape, const Var& x, Parameter& a_log, Parameter& dt_bias);
// (2, B, T, H) f32: g = -e^a_log dt, and the steps dt = softplus(x + dt_bias) in `range`.
Var decay_and_steps(Tape& tape, const Var& x, Parameter& a_log, Parameter& dt_bias, const ops::StepRange& range);

struct DeltaRuleInputs {
    Var query, key;  // (B, T, Hk, Dk)
    Var value;       // (B, T, Hv, Dv)
    Var g, b;        // (B, T, Hv), g as decay() returns it; of the scan g is decay_and_steps(), and b has no value
    Parameter* skip = nullptr;  // (Hv), of the scan
};
// Returns o (B, T, Hv, Dv). With caches, the state in their layer `layer` is read, and replaced by that after the
// tokens.
Var delta_rule(Tape& tape, const DeltaRuleInputs& inputs, const Batch& batch, int64_t layer);

}  // namespace tutti::nn
