#include "tutti/train/step.h"

#include <cmath>

#include "tutti/ops/ops.h"
#include "tutti/optim/schedule.h"
#include "tutti/spec/recompute.h"

namespace tutti::train {

using autograd::Tape;
using autograd::Var;

StepResult train_step(StepContext& s, int64_t step) {
    const spec::TrainSpec& train = s.run.train;
    const int64_t segment = spec::recompute_segment(s.run.recompute.policy, s.run.model.layers);
    const Tensor loss_sum = ops::zeros(s.ctx, {1}, DType::f64, Purpose::workspace);

    optim::zero_gradients(s.ctx, s.model.parameters());
    for (int64_t i = 0; i < train.global_batch / train.micro_batch; ++i) {
        nn::Batch batch = s.batches.microbatch(step, i);
        batch.seed = static_cast<uint64_t>(train.seed);
        batch.step = static_cast<uint64_t>(step);
        Tape tape(s.ctx, true, s.hooks);
        const Var losses = s.model.forward(tape, batch, segment);
        tape.backward(losses);
        ops::sum(s.ctx, losses.value, loss_sum);
    }

    StepResult r;
    r.terms = s.batches.terms(step);
    r.loss = ops::item(loss_sum) / static_cast<double>(r.terms);
    r.grad_norm = optim::gradient_norm(s.ctx, s.model.parameters());
    r.lr = optim::learning_rate(s.run.optimizer, train.steps, step);
    if (!std::isfinite(r.loss) || !std::isfinite(r.grad_norm)) {
        const autograd::Parameter* bad = optim::first_non_finite(s.ctx, s.model.parameters());
        r.skipped = true;
        r.culprit = bad ? bad->name : "loss";
        return r;
    }
    s.optimizer.step(r.lr, optim::clip_factor(r.grad_norm, s.run.optimizer.clip));
    return r;
}

double evaluate(StepContext& s, Batches& source, int64_t batches) {
    const Tensor loss_sum = ops::zeros(s.ctx, {1}, DType::f64, Purpose::workspace);
    int64_t rows = 0;
    for (int64_t i = 0; i < batches; ++i) {
        Tape tape(s.ctx, false);
        const Var losses = s.model.forward(tape, source.microbatch(i + 1, 0));
        ops::sum(s.ctx, losses.value, loss_sum);
        rows += source.terms(i + 1);
    }
    return ops::item(loss_sum) / static_cast<double>(rows);
}

}  // namespace tutti::train
