#include "tutti/nn/delta_rule.h"

#include "tutti/base/to_size.h"
#include "tutti/nn/recording.h"
#include "tutti/nn/sequence_runs.h"

namespace tutti::nn {

namespace {

using Tensors = std::vector<Tensor>;

// All but the state; `skip` is left out.
ops::DeltaRule inputs_of(const DeltaRuleInputs& in, const Batch& batch) {
    const bool corrects = in.b.value.defined();
    const auto rates = [&](int64_t i) {
        const Shape& s = in.g.value.shape();
        return in.g.value.narrow(0, i, 1).reshape({s[1], s[2], s[3]});
    };
    return {.corrects = corrects,
            .query = in.query.value,
            .key = in.key.value,
            .value = in.value.value,
            .g = corrects ? in.g.value : rates(0),
            .b = corrects ? in.b.value : rates(1),
            .skip = {},
            .positions = batch.positions,
            .before = {}};
}

// The rule on this rank's part of each sequence, run by run. Holds the inputs and the states before the runs.
class Rule {
  public:
    Rule(ops::Context& ctx, const DeltaRuleInputs& in, const Batch& batch)
        : ctx_(ctx),
          skip_(in.skip),
          all_(inputs_of(in, batch)),
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

    // Gradients of the inputs, in their order; of the scan that of g and steps is the last.
    Tensors backward(const Tensor& dout) const {
        Tensors d, all;
        for (const Tensor* x : {&all_.query, &all_.key, &all_.value})
            d.push_back(ops::empty(ctx_, x->shape(), x->dtype()));
        all = d;
        if (all_.corrects) {
            for (const Tensor* x : {&all_.g, &all_.b}) d.push_back(ops::empty(ctx_, x->shape(), x->dtype()));
            all = d;
        } else {
            const Shape& s = all_.g.shape();
            all.push_back(ops::empty(ctx_, {2, s[0], s[1], s[2]}, DType::f32));
            for (const int64_t i : {0, 1}) d.push_back(all.back().narrow(0, i, 1).reshape(s));
        }
        runs_.relay(true, all_.state_shape(), [&](size_t i, const Tensor& after, bool wanted) {
            Tensors part;
            for (const Tensor& x : d) part.push_back(rows(x, i));
            const Tensor before = wanted ? ops::empty(ctx_, all_.state_shape(), DType::f32) : Tensor();
            ops::delta_rule_backward(ctx_, run(i), ops::contiguous(ctx_, runs_.tokens(dout, i)), after,
                                     {part[0], part[1], part[2], part[3], part[4], before});
            for (size_t j = 0; j < d.size(); ++j) put_back(part[j], d[j], i);
            return before;
        });
        return all;
    }

    void backward_skip(const Tensor& dout) const {
        ops::delta_rule_backward_skip(ctx_, ops::contiguous(ctx_, dout), all_.value, gradient_to_add_to(ctx_, *skip_));
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
        return {.corrects = all_.corrects,
                .query = runs_.tokens(all_.query, i),
                .key = runs_.tokens(all_.key, i),
                .value = runs_.tokens(all_.value, i),
                .g = ops::contiguous(ctx_, runs_.tokens(all_.g, i)),
                .b = ops::contiguous(ctx_, runs_.tokens(all_.b, i)),
                .skip = skip_ ? skip_->value : Tensor(),
                .positions = runs_.tokens(all_.positions, i),
                .before = before_[i]};
    }

    ops::Context& ctx_;
    Parameter* skip_;  // read when it is needed: a sharded parameter may be released in between
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
    const ops::DeltaRule all = inputs_of(in, batch);
    for (int64_t n = 0; n < v.dim(0); ++n) {
        Tensor& state = batch.caches[to_size(n)]->deltas.at(to_size(layer));
        const auto row = [n](const Tensor& x) { return x.narrow(0, n, 1); };
        state = ops::delta_rule(ctx,
                                {.corrects = all.corrects,
                                 .query = row(all.query),
                                 .key = row(all.key),
                                 .value = row(all.value),
                                 .g = row(all.g),
                                 .b = row(all.b),
                                 .skip = in.skip ? in.skip->value : Tensor(),
                                 .positions = row(all.positions),
                                 .before = state},
                                row(o), true);
    }
    return o;
}

}  // namespace

namespace {

Var record_decay(Tape& tape, const Var& x, Parameter& a_log, Parameter& dt_bias, const ops::StepRange& range,
                 bool with_steps) {
    ops::Context& ctx = tape.context();
    const Tensor g = ops::decay(ctx, {x.value, a_log.value, dt_bias.value, range}, with_steps);
    if (!tape.recording()) return {g, -1};
    // Copies: a sharded parameter may be released before the weight gradient of the node.
    const auto copy = [&ctx](const Parameter& p) { return ops::cast(ctx, p.value, p.value.dtype()); };
    return tape.record(
        "decay", {x}, g,
        [&ctx, x = x.value, &a_log, &dt_bias, range](const Tensor& d, Tensors&) {
            return Tensors{ops::decay_backward_input(ctx, {x, a_log.value, dt_bias.value, range}, d)};
        },
        [&ctx, x = x.value, &a_log, &dt_bias, range, log = copy(a_log), bias = copy(dt_bias)](const Tensor& d) {
            const Tensor of_log = gradient_to_add_to(ctx, a_log), of_bias = gradient_to_add_to(ctx, dt_bias);
            ops::decay_backward_weight(ctx, {x, log, bias, range}, d, of_log, of_bias);
        },
        {&a_log, &dt_bias});
}

}  // namespace

Var decay(Tape& tape, const Var& x, Parameter& a_log, Parameter& dt_bias) {
    return record_decay(tape, x, a_log, dt_bias, {}, false);
}

Var decay_and_steps(Tape& tape, const Var& x, Parameter& a_log, Parameter& dt_bias, const ops::StepRange& range) {
    return record_decay(tape, x, a_log, dt_bias, range, true);
}

Var delta_rule(Tape& tape, const DeltaRuleInputs& in, const Batch& batch, int64_t layer) {
    if (!batch.caches.empty()) return {of_caches(tape.context(), in, batch, layer), -1};
    const auto rule = std::make_shared<Rule>(tape.context(), in, batch);
    const Tensor o = rule->forward();
    const auto backward = [rule](const Tensor& dout, Tensors&) { return rule->backward(dout); };
    if (in.b.value.defined()) return tape.record("delta_rule", {in.query, in.key, in.value, in.g, in.b}, o, backward);
    if (in.skip == nullptr) return tape.record("scan", {in.query, in.key, in.value, in.g}, o, backward);
    return tape.record("scan", {in.query, in.key, in.value, in.g}, o, backward,
                       [rule](const Tensor& dout) { rule->backward_skip(dout); }, {in.skip});
}

}  // namespace tutti::nn
