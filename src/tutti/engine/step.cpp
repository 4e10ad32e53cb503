#include "tutti/engine/step.h"

#include <cmath>
#include <optional>

#include "tutti/autograd/tape.h"
#include "tutti/base/trace.h"
#include "tutti/engine/pipedream.h"
#include "tutti/ops/ops.h"
#include "tutti/ops/weight_forms.h"
#include "tutti/optim/optimizer.h"

namespace tutti::engine {

using autograd::Tape;
using autograd::Var;

namespace {

// Spans of a GPU's compute, by marks in its stream, since the host only starts the work. No effect without a trace, on
// a CPU and in recorded work (a graph holds no marks).
class GpuSpans {
  public:
    explicit GpuSpans(Engine& s)
        : trace_(s.device->launches_async() && !s.graph ? s.trace : nullptr), device_(*s.device) {}

    void begin() {
        if (trace_ != nullptr) begin_ = device_.mark_time();
    }
    // `name` and `of` live as long as this object.
    void end(std::string_view name, std::string_view of = {}) {
        if (trace_ != nullptr) spans_.push_back({name, of, std::move(begin_), device_.mark_time()});
    }
    // Waits for the device.
    void write() {
        if (spans_.empty()) return;
        const auto now = device_.mark_time();
        device_.synchronize();
        const int64_t now_ns = Trace::now_ns();
        const auto time_of = [&](const TimeMark& mark) {
            return now_ns - static_cast<int64_t>(1e9 * now->seconds_since(mark));
        };
        for (const Span& span : spans_)
            trace_->add({Activity::gpu, span.name, span.of, "GPU"}, time_of(*span.begin), time_of(*span.end));
        spans_.clear();
    }

  private:
    struct Span {
        std::string_view name, of;
        std::unique_ptr<TimeMark> begin, end;
    };
    Tracer* trace_;
    Device& device_;
    std::unique_ptr<TimeMark> begin_;
    std::vector<Span> spans_;
};

// Records the forward and the backward of each unit as spans of a trace, without the hooks of parallelism around them:
// waits before and after a unit are not part of its span.
class TracingHooks final : public autograd::Hooks {
  public:
    TracingHooks(autograd::Hooks& inner, Tracer* trace, GpuSpans& gpu) : inner_(inner), trace_(trace), gpu_(gpu) {}

    void before(autograd::Unit& unit, const autograd::Pass& pass) override {
        inner_.before(unit, pass);
        span_.emplace(trace_, Tracer::What{Activity::compute, autograd::name_of(pass.kind), unit.name});
        gpu_.begin();
    }
    void after(autograd::Unit& unit, const autograd::Pass& pass) override {
        gpu_.end(autograd::name_of(pass.kind), unit.name);
        span_.reset();
        inner_.after(unit, pass);
    }
    void gradient_ready(autograd::Parameter& parameter, const autograd::Pass& pass) override {
        inner_.gradient_ready(parameter, pass);
    }

  private:
    autograd::Hooks& inner_;
    Tracer* trace_;
    GpuSpans& gpu_;
    std::optional<TraceScope> span_;
};

// The batch for this rank's layers, which may have only some of its rows and may divide its sequences with others.
nn::Batch shared_out(Engine& s, nn::Batch batch) {
    const spec::ParallelSpec& p = s.run.parallel;
    if (p.tp > 1 && p.sequence_parallel) {  // for dropout, which is between the products
        const comm::Communicator& tp = s.groups.over(mesh::kTp);
        batch.row_index = nn::rows_of(batch.row_index, tp.rank(), tp.size());
    }
    batch.context = context_of(s.groups, p.cp_method == "all_gather");
    batch.routing = s.routers;
    return batch;
}

nn::Batch next_batch(Engine& s, int64_t step, int64_t index) {
    const TraceScope span(s.trace, {Activity::data, "data"});
    return shared_out(s, s.batches->microbatch(step, index));
}

// Ranks of one tensor-parallel group compute the same losses: one of them counts them.
bool counts_losses(const Engine& s) { return s.groups.coordinate(mesh::kTp) == 0; }

using Around = std::function<void(const schedule::Action&)>;

// Every pass of a program, or of a part of one, with the batches of a step.
void run_program(Engine& s, GpuSpans& gpu, const schedule::Program& program, const pipeline::Executor::MakeBatch& batch,
                 const Around& before = {}, const Around& after = {}) {
    TracingHooks traced(*s.data_parallel, s.trace, gpu);
    autograd::Hooks& hooks = s.trace != nullptr ? traced : static_cast<autograd::Hooks&>(*s.data_parallel);
    const auto add = [&s](int64_t, const nn::Batch&, const Tensor& losses) {
        if (counts_losses(s)) s.losses.add(losses);
    };
    const bool balances_all_layers = s.run.model.moe.aux_loss == "all_layers" && s.routing;
    s.executor.run(program, {.hooks = hooks,
                             .batch = batch,
                             .output = add,
                             .weights = s.data_parallel.get(),
                             .before = before,
                             .after = after,
                             .trace = s.trace,
                             .routing = balances_all_layers ? &*s.routing : nullptr});
}

// Each microbatch has updated the weights, with the mean of its own terms; nothing is left to update.
void run_asynchronous(Engine& s, GpuSpans& gpu, double lr, int64_t microbatches,
                      const pipeline::Executor::MakeBatch& batch) {
    PipeDream pipedream(s, lr);
    const auto of_microbatch = [&](int64_t index) {
        nn::Batch one = batch(index);
        one.grad_scale *= static_cast<float>(microbatches);
        return one;
    };
    run_program(
        s, gpu, s.pipeline.program(), of_microbatch, [&](const schedule::Action& a) { pipedream.before(a); },
        [&](const schedule::Action& a) { pipedream.after(a); });
}

// A recorded microbatch is a forward and its backward, on one rank without a pipeline.
void run_recorded(Engine& s, GpuSpans& gpu, const schedule::Program& program,
                  const pipeline::Executor::MakeBatch& batch) {
    for (size_t i = 0; i < program.size(); i += 2) {
        const schedule::Program both = {program[i], program[i + 1]};
        const nn::Batch inputs = batch(program[i].microbatch);
        if (s.ctx.meter != nullptr && s.ctx.meter->needs_single_launches())
            run_program(s, gpu, both, [&](int64_t) { return inputs; });
        else
            s.graph->run(inputs,
                         [&](const nn::Batch& kept) { run_program(s, gpu, both, [&](int64_t) { return kept; }); });
    }
}

}  // namespace

StepResult train_step(Engine& s, int64_t step) {
    const spec::TrainSpec& train = s.run.train;
    std::vector<int64_t> microbatches;  // of each run of units
    for (const pipeline::Chunk& chunk : s.pipeline.chunks()) microbatches.push_back(chunk.microbatches);

    const double lr = optim::learning_rate(s.run.optimizer, train.steps, step);
    const bool asynchronous = is_asynchronous(s.run);
    const TraceScope whole(s.trace, {Activity::step, "step"});
    GpuSpans gpu(s);
    if (!asynchronous) s.data_parallel->begin_step(microbatches);
    if (s.routing) s.routing->begin();
    {
        // Forms of weights are kept from one microbatch to the next, where weights stay in memory.
        const bool keeps = microbatches.front() > 1 && s.run.parallel.zero < 3 && !asynchronous;
        const ops::KeepForms forms(s.ctx, keeps);
        const auto batch = [&](int64_t index) {
            nn::Batch one = next_batch(s, step, index);
            one.seed = static_cast<uint64_t>(train.seed);
            one.step = static_cast<uint64_t>(step);
            one.share = static_cast<float>(train.micro_batch) / static_cast<float>(train.global_batch);
            if (s.routing) {
                one.routing.record = &*s.routing;
                one.routing.index = index;
            }
            return one;
        };
        if (asynchronous)
            run_asynchronous(s, gpu, lr, microbatches.front(), batch);
        else if (s.graph)
            run_recorded(s, gpu, s.pipeline.program(), batch);
        else
            run_program(s, gpu, s.pipeline.program(), batch);
    }
    {
        const TraceScope span(s.trace, {Activity::other, "finish gradients"});
        if (!asynchronous) s.data_parallel->finish_gradients();
        s.losses.send();
    }

    StepResult r;
    r.valid_tokens = s.batches->valid_tokens(step);
    {
        const TraceScope span(s.trace, {Activity::compute, "gradient norm"});
        r.grad_norm = s.data_parallel->gradient_norm();  // the one wait for the device
        ExactSum loss = s.losses.take();
        s.groups.world().sum(loss);
        r.loss = loss.value() / static_cast<double>(r.valid_tokens);
        if (s.routing) r.routing = s.routing->take(s.groups.world());
    }
    r.lr = lr;
    if (asynchronous) {
        check(std::isfinite(r.loss) && std::isfinite(r.grad_norm), "step ", step,
              ": loss or gradient is not finite, and pipedream has updated weights with it already; continue from a ",
              "checkpoint with a lower optimizer.lr");
        return r;
    }
    if (!std::isfinite(r.loss) || !std::isfinite(r.grad_norm)) {
        const std::string bad = s.data_parallel->first_non_finite();
        r.skipped = true;
        r.culprit = bad.empty() ? "loss" : bad;
        return r;
    }
    {
        const TraceScope span(s.trace, {Activity::compute, "optimizer"});
        const spec::MixtureSpec& moe = s.run.model.moe;
        const double choices = static_cast<double>(train.global_batch * train.seq_len * moe.top_k);
        gpu.begin();
        s.optimizer.step(r.lr, optim::clip_factor(r.grad_norm, s.run.optimizer.clip),
                         moe.experts > 0 ? choices / static_cast<double>(moe.experts) : 0);
        gpu.end("optimizer");
    }
    gpu.write();
    const TraceScope span(s.trace, {Activity::other, "publish weights"});
    s.data_parallel->all_gather_weights();
    return r;
}

double evaluate(Engine& s, Batches& source, int64_t batches) {
    ops::Sum losses(s.ctx);
    ExactSum rows;
    const comm::Communicator& dp = s.groups.over(mesh::kDp);
    const int64_t rank = dp.rank(), ranks = dp.size(), rounds = (batches + ranks - 1) / ranks;
    const auto batch = [&](int64_t i) { return shared_out(s, source.microbatch(i + 1, 0)); };
    const auto take = [&](int64_t i, const nn::Batch& of, const Tensor& y) {
        if (i * ranks + rank >= batches || !counts_losses(s)) return;  // this rank only takes part in the collectives
        losses.add(y);
        for (int32_t target : of.targets.to_host<int32_t>()) rows.add(target >= 0 ? 1 : 0);
    };
    s.executor.run(s.pipeline.forward_program(static_cast<int>(rounds)), {.training = false,
                                                                          .hooks = *s.data_parallel,
                                                                          .batch = batch,
                                                                          .output = take,
                                                                          .weights = s.data_parallel.get()});
    ExactSum loss = losses.take();
    s.groups.world().sum(loss);
    s.groups.world().sum(rows);
    return loss.value() / rows.value();
}

}  // namespace tutti::engine
