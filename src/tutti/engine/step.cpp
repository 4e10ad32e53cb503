#include "tutti/engine/step.h"

#include <cmath>
#include <optional>

#include "tutti/autograd/tape.h"
#include "tutti/base/trace.h"
#include "tutti/ops/ops.h"
#include "tutti/optim/schedule.h"
#include "tutti/spec/layers.h"

namespace tutti::engine {

using autograd::Tape;
using autograd::Var;

namespace {

// Notes the forward and the backward of each unit as spans of a trace, inside whatever parallelism does around them:
// its waits before and after a unit are not the unit's.
class TracingHooks final : public autograd::Hooks {
  public:
    TracingHooks(autograd::Hooks& inner, Tracer* trace) : inner_(inner), trace_(trace) {}

    void before(autograd::Unit& unit, const autograd::Pass& pass) override {
        inner_.before(unit, pass);
        span_.emplace(trace_, Tracer::What{Activity::compute, autograd::name_of(pass.kind), unit.name});
    }
    void after(autograd::Unit& unit, const autograd::Pass& pass) override {
        span_.reset();
        inner_.after(unit, pass);
    }
    void gradient_ready(autograd::Parameter& parameter, const autograd::Pass& pass) override {
        inner_.gradient_ready(parameter, pass);
    }

  private:
    autograd::Hooks& inner_;
    Tracer* trace_;
    std::optional<TraceScope> span_;
};

// The batch as the layers of this rank see it, which may have some of its rows, and which may share its sequences.
nn::Batch shared_out(Engine& s, nn::Batch batch) {
    const spec::ParallelSpec& p = s.run.parallel;
    if (p.tp > 1 && p.sequence_parallel) {  // for dropout, which lies between the products
        const comm::Communicator& tp = s.groups.over(mesh::kTp);
        batch.row_index = nn::rows_of(batch.row_index, tp.rank(), tp.size());
    }
    batch.context = context_of(s.groups, p.cp_method == "all_gather");
    return batch;
}

nn::Batch next_batch(Engine& s, int64_t step, int64_t index) {
    const TraceScope span(s.trace, {Activity::data, "data"});
    return shared_out(s, s.batches->microbatch(step, index));
}

// Ranks of one tensor-parallel group compute the same losses: one of them counts them.
bool counts_losses(const Engine& s) { return s.groups.coordinate(mesh::kTp) == 0; }

void forward_backward(Engine& s, const nn::Batch& batch, int64_t index) {
    const spec::Recompute recompute = spec::recompute_of(s.run.recompute.policy, s.run.model.layers);
    TracingHooks traced(s.data_parallel, s.trace);
    autograd::Hooks* hooks = s.trace != nullptr ? &traced : static_cast<autograd::Hooks*>(&s.data_parallel);
    Tape tape(s.ctx, true, hooks, s.run.offload.activations ? s.home.get() : nullptr, 0, index);
    tape.set_selective(recompute.selective);
    const Var losses = s.model.forward(tape, batch, recompute.segment);
    tape.backward(losses);
    if (counts_losses(s)) s.losses.add(losses.value);
}

}  // namespace

StepResult train_step(Engine& s, int64_t step) {
    const spec::TrainSpec& train = s.run.train;
    const int64_t microbatches = train.global_batch / (train.micro_batch * s.groups.over(mesh::kDp).size());

    const TraceScope whole(s.trace, {Activity::step, "step"});
    s.data_parallel.begin_step(microbatches);
    {
        // Packed weights are kept from one microbatch to the next, where weights stay in their place.
        const bool keeps_packed = microbatches > 1 && s.run.parallel.zero < 3;
        const ops::KeepPacked packed(s.ctx, keeps_packed ? &s.packed_weights : nullptr);
        for (int64_t i = 0; i < microbatches; ++i) {
            nn::Batch batch = next_batch(s, step, i);
            batch.seed = static_cast<uint64_t>(train.seed);
            batch.step = static_cast<uint64_t>(step);
            const bool single_launches = s.ctx.meter != nullptr && s.ctx.meter->needs_single_launches();
            if (s.graph && !single_launches)
                s.graph->run(batch, [&s, i](const nn::Batch& inputs) { forward_backward(s, inputs, i); });
            else
                forward_backward(s, batch, i);
        }
    }
    {
        const TraceScope span(s.trace, {Activity::other, "finish gradients"});
        s.data_parallel.finish_gradients();
        s.losses.send();
    }

    StepResult r;
    r.terms = s.batches->terms(step);
    {
        const TraceScope span(s.trace, {Activity::compute, "gradient norm"});
        r.grad_norm = s.data_parallel.gradient_norm();  // the one wait for the device
        ExactSum loss = s.losses.take();
        s.groups.world().sum(loss);
        r.loss = loss.value() / static_cast<double>(r.terms);
    }
    r.lr = optim::learning_rate(s.run.optimizer, train.steps, step);
    if (!std::isfinite(r.loss) || !std::isfinite(r.grad_norm)) {
        const std::string bad = s.data_parallel.first_non_finite();
        r.skipped = true;
        r.culprit = bad.empty() ? "loss" : bad;
        return r;
    }
    {
        const TraceScope span(s.trace, {Activity::compute, "optimizer"});
        s.optimizer.step(r.lr, optim::clip_factor(r.grad_norm, s.run.optimizer.clip));
    }
    const TraceScope span(s.trace, {Activity::other, "publish weights"});
    s.data_parallel.publish_weights();
    return r;
}

double evaluate(Engine& s, Batches& source, int64_t batches) {
    ops::Sum losses(s.ctx);
    ExactSum rows;
    const comm::Communicator& dp = s.groups.over(mesh::kDp);
    const int64_t rank = dp.rank(), ranks = dp.size();
    for (int64_t i = 0; i * ranks < batches; ++i) {
        const nn::Batch batch = shared_out(s, source.microbatch(i + 1, 0));
        Tape tape(s.ctx, false, &s.data_parallel);
        const Var y = s.model.forward(tape, batch);
        if (i * ranks + rank >= batches || !counts_losses(s)) continue;  // it only keeps step with the others
        losses.add(y.value);
        for (int32_t target : batch.targets.to_host<int32_t>()) rows.add(target >= 0 ? 1 : 0);
    }
    ExactSum loss = losses.take();
    s.groups.world().sum(loss);
    s.groups.world().sum(rows);
    return loss.value() / rows.value();
}

}  // namespace tutti::engine
