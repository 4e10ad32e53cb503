#include "tutti/nn/delta_rule.h"

#include "tutti/nn/recording.h"
#include "tutti/nn/sequence_runs.h"

namespace tutti::nn {

namespace {

using Tensors = std::vector<Tensor>;

// The rule on this rank's part of each sequence, run by run. Holds the inputs and the states before the runs.
class Rule {
  public:
    Rule(ops::Context& ctx, const DeltaRuleInputs& in, const Batch& batch)
        : ctx_(ctx),
          all_{.query = in.query.value,
               .key = in.key.value,
               .value = in.value.value,
               .g = in.g.value,
               .b = in.b.value,
               .positions = batch.positions,
               .before = {}},
          runs_(ctx, batch.context, in.value.value.dim(1)),
          before_(runs_.count()) {}

    Tensor forward() {
        const Tensor o = ops::empty(ctx_, all_.value.shape(), all_.value.dtype());
        runs_.relay(false, all_.state_shape(), [&](size_t i, const Tensor& state, bool wanted) {
            before_[i] = state;
            const Tensor part = rows(o, i);
            const Tensor after = ops::delta_rule(ctx_, run(i), part, wanted);
            put_back(part, o, i);
            return after;
        });
        return o;
    }

    // Gradients of the inputs, in their order.
    Tensors backward(const Tensor& dout) const {
        Tensors d;
        for (const Tensor* x : {&all_.query, &all_.key, &all_.value, &all_.g, &all_.b})
            d.push_back(ops::empty(ctx_, x->shape(), x->dtype()));
        runs_.relay(true, all_.state_shape(), [&](size_t i, const Tensor& after, bool wanted) {
            Tensors part;
            for (const Tensor& x : d) part.push_back(rows(x, i));
            const Tensor before = wanted ? ops::empty(ctx_, all_.state_shape(), DType::f32) : Tensor();
            ops::delta_rule_backward(ctx_, run(i), ops::contiguous(ctx_, runs_.tokens(dout, i)), after,
                                     {part[0], part[1], part[2], part[3], part[4], before});
            for (size_t j = 0; j < d.size(); ++j) put_back(part[j], d[j], i);
            return before;
        });
        return d;
    }

  private:
    // Memory for the tokens of run i of x: part of x where that is contiguous, else put_back() copies it there.
    Tensor rows(const Tensor& x, size_t i) const {
        const Tensor part = runs_.tokens(x, i);
        return part.contiguous() ? part : ops::empty(ctx_, part.shape(), part.dtype());
    }
    void put_back(const Tensor& part, const Tensor& x, size_t i) const {
        const Tensor place = runs_.tokens(x, i);
        if (!place.contiguous()) ops::copy(ctx_, part, place);
    }
    ops::DeltaRule run(size_t i) const {
        return {.query = runs_.tokens(all_.query, i),
                .key = runs_.tokens(all_.key, i),
                .value = runs_.tokens(all_.value, i),
                .g = ops::contiguous(ctx_, runs_.tokens(all_.g, i)),
                .b = ops::contiguous(ctx_, runs_.tokens(all_.b, i)),
                .positions = runs_.tokens(all_.positions, i),
                .before = before_[i]};
    }

    ops::Context& ctx_;
    ops::DeltaRule all_;
    SequenceRuns runs_;
    Tensors before_;  // by run
};

// One sequence at a time, since each has its own state.
Tensor of_caches(ops::Context& ctx, const DeltaRuleInputs& in, const Batch& batch, int64_t layer) {
    const Tensor& v = in.value.value;
    check(static_cast<int64_t>(batch.caches.size()) == v.dim(0), "delta rule: ", batch.caches.size(), " caches for ",
          v.dim(0), " sequences");
    const Tensor o = ops::empty(ctx, v.shape(), v.dtype());
    for (int64_t n = 0; n < v.dim(0); ++n) {
        Tensor& state = batch.caches[static_cast<size_t>(n)]->deltas.at(static_cast<size_t>(layer));
        const auto row = [n](const Tensor& x) { return x.narrow(0, n, 1); };
        state = ops::delta_rule(ctx,
                                {.query = row(in.query.value),
                                 .key = row(in.key.value),
                                 .value = row(v),
                                 .g = row(in.g.value),
                                 .b = row(in.b.value),
                                 .positions = row(batch.positions),
                                 .before = state},
                                row(o), true);
    }
    return o;
}

}  // namespace

Var decay(Tape& tape, const Var& x, Parameter& a_log, Parameter& dt_bias) {
    ops::Context& ctx = tape.context();
    const Tensor g = ops::decay(ctx, x.value, a_log.value, dt_bias.value);
    if (!tape.recording()) return {g, -1};
    // Copies: a sharded parameter may be released before the weight gradient of the node.
    const auto copy = [&ctx](const Parameter& p) { return ops::cast(ctx, p.value, p.value.dtype()); };
    return tape.record(
        "decay", {x}, g,
        [&ctx, x = x.value, &a_log, &dt_bias](const Tensor& dg, Tensors&) {
            return Tensors{ops::decay_backward_input(ctx, dg, x, a_log.value, dt_bias.value)};
        },
        [&ctx, x = x.value, &a_log, &dt_bias, log = copy(a_log), bias = copy(dt_bias)](const Tensor& dg) {
            const Tensor of_log = gradient_to_add_to(ctx, a_log), of_bias = gradient_to_add_to(ctx, dt_bias);
            ops::decay_backward_weight(ctx, dg, x, log, bias, of_log, of_bias);
        },
        {&a_log, &dt_bias});
}

Var delta_rule(Tape& tape, const DeltaRuleInputs& in, const Batch& batch, int64_t layer) {
    if (!batch.caches.empty()) return {of_caches(tape.context(), in, batch, layer), -1};
    const auto rule = std::make_shared<Rule>(tape.context(), in, batch);
    const Tensor o = rule->forward();
    return tape.record("delta_rule", {in.query, in.key, in.value, in.g, in.b}, o,
                       [rule](const Tensor& dout, Tensors&) { return rule->backward(dout); });
}

}  // namespace tutti::nn
