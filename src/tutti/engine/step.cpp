// engine/step.cpp: the training step, from microbatches to updated weights, and the parts that other algorithms share.
#include "tutti/engine/step.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>

#include "tutti/engine/algorithms.h"
#include "tutti/ops/weight_forms.h"
#include "tutti/optim/optimizer.h"
#include "tutti/spec/learning_rate.h"

namespace tutti::engine {

StepResult synchronous_step(Engine& s, int64_t step) {
    StepTrace trace(s.trace, *s.device, s.graph.has_value(), *s.data_parallel);
    StepResult r{.lr = spec::learning_rate(s.run, step)};

    add_gradients(s, step, trace);  // all forwards and backwards, and the sums over the ranks

    measure(s, step, trace, r);  // loss and gradient norm, the same on every rank
    if (!may_update(s, r)) return r;

    update(s, trace, r);  // this rank's shard
    trace.part(Activity::other, "publish weights", [&] { s.data_parallel->all_gather_weights(); });
    return r;
}

void add_gradients(Engine& s, int64_t step, StepTrace& trace) {
    const std::vector<int64_t> microbatches = microbatches_of(s.pipeline);
    if (s.scales) s.scales->begin_step(s.ctx);
    if (s.lost) s.lost->begin_step(s.ctx);
    s.data_parallel->begin_step(microbatches);  // a gradient is summed over the ranks after so many backwards
    {
        // Forms of weights are kept from one microbatch to the next, where weights stay in memory.
        const ops::KeepForms forms(s.ctx, microbatches.front() > 1 && s.run.parallel.zero < 3);
        run_passes(s, trace, batches_of(s, step));
    }
    trace.part(Activity::other, "finish gradients", [&] {
        s.data_parallel->finish_gradients();
        if (s.scales) s.scales->end_step(s.groups.world());
        if (s.lost) s.lost->end_step();
        send_losses(s);
    });
}

void send_losses(Engine& s) {
    s.losses.send();
    for (ops::Sum& losses : s.later_losses) losses.send();
}

double gradient_norm(Engine& s) { return s.data_parallel->gradient_norm() / s.loss_scale.value; }

void measure(Engine& s, int64_t step, StepTrace& trace, StepResult& r) {
    r.valid_tokens = s.batches->valid_tokens(step);
    trace.part(Activity::compute, "gradient norm", [&] {
        r.loss_scale = s.loss_scale.value;
        r.grad_norm = gradient_norm(s);  // the one wait for the device
        const auto mean = [&](ops::Sum& losses, std::span<int64_t> counts = {}) {
            ExactSum sum = losses.take();
            s.groups.world().sum(sum, counts);
            return sum.value() / static_cast<double>(std::max<int64_t>(r.valid_tokens, 1));
        };
        std::array<int64_t, 3> lost = s.lost ? s.lost->counts(s.ctx) : std::array<int64_t, 3>{};
        r.loss = mean(s.losses, std::span(lost).first(s.lost ? lost.size() : 0));
        if (const auto all = static_cast<double>(lost[2]); all > 0)
            r.saturated = static_cast<double>(lost[0]) / all, r.flushed = static_cast<double>(lost[1]) / all;
        for (ops::Sum& losses : s.later_losses) r.later_losses.push_back(mean(losses));
        if (s.routing) r.routing = s.routing->take(s.groups.world());
    });
}

bool may_update(Engine& s, StepResult& r) {
    if (r.valid_tokens == 0) {  // a mean over nothing: no update either, nor decay or momentum
        r.loss = std::numeric_limits<double>::quiet_NaN();
        return false;
    }
    r.skipped = !std::isfinite(r.loss) || !std::isfinite(r.grad_norm);
    r.overflowed = r.skipped && std::isfinite(r.loss) && may_fall(s.run, s.loss_scale);
    s.loss_scale = next_loss_scale(s.run, s.loss_scale, r.skipped);
    if (!r.skipped) return true;
    const std::string bad = s.data_parallel->first_non_finite();
    r.culprit = bad.empty() ? "loss" : bad;
    return false;
}

void update(Engine& s, StepTrace& trace, const StepResult& r) {
    trace.compute("optimizer", [&] {
        s.optimizer.step(r.lr, optim::clip_factor(r.grad_norm, s.run.optimizer.clip) / r.loss_scale,
                         r.routing.mean_load);
    });
    if (s.scales) s.scales->learn(s.ctx);
    trace.write_gpu_spans();
}

Algorithm algorithm_of(const spec::RunSpec& run) {
    if (is_asynchronous(run)) return pipedream_step;
    return run.parallel.strategy == "parameter_server" ? parameter_server_step : synchronous_step;
}

StepResult train_step(Engine& s, int64_t step) { return s.algorithm(s, step); }

}  // namespace tutti::engine
