// PipeDream against its definition, computed on one rank: forward and backward of microbatch k with the weights that
// stage s had after max(0, k - (p - 1 - s)) updates.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>

#include "tutti/base/to_size.h"
#include "tutti/comm/threads/thread_world.h"
#include "tutti/engine/algorithms.h"
#include "tutti/engine/step.h"
#include "tutti/engine/testing/tiny.h"
#include "tutti/optim/optimizer.h"
#include "tutti/spec/learning_rate.h"

namespace tutti::engine {
namespace {

constexpr int64_t kMicrobatches = 6;
using Weights = std::map<std::string, std::vector<float>>;

spec::RunSpec tiny(const std::string& optimizer) {
    spec::RunSpec run = testing::tiny_llama(6, kMicrobatches);
    run.optimizer.name = optimizer;
    run.optimizer.lr = run.optimizer.min_lr = optimizer == "sgd" ? 0.1 : 1e-3;
    run.optimizer.warmup_steps = 0;
    run.optimizer.clip = 0;
    return run;
}

MakeBatches batches_of(const spec::RunSpec& run) {
    return [&run](ops::Context& ctx, const BatchShard& share) { return fixed_batches(ctx, run, share); };
}

struct Outcome {
    double loss = 0;
    Weights weights;
};

Outcome trained(spec::RunSpec run, int ranks, int64_t pp) {
    run.parallel.pp = pp;
    run.parallel.schedule = "pipedream";
    Outcome outcome;
    std::mutex mutex;
    comm::run_ranks(ranks, {.timeout_s = 60}, [&](comm::World& world) {
        Engine engine(run, world, machine_of(run, {}, ""), batches_of(run));
        const StepResult r = train_step(engine, 1);
        const std::lock_guard lock(mutex);
        outcome.loss = r.loss;
        if (engine.groups.coordinate(mesh::kDp) > 0) return;
        for (const optim::ParameterShard& piece : engine.optimizer.parameter_shards()) {
            auto& whole = outcome.weights[piece.parameter->name];
            const std::vector<float> values = piece.master.to_host<float>();
            whole.insert(whole.end(), values.begin(), values.end());
        }
    });
    return outcome;
}

// On one rank; the p - 1 versions behind the newest are copies.
Outcome by_definition(const spec::RunSpec& run, int p) {
    Outcome outcome;
    comm::run_ranks(1, {}, [&](comm::World& world) {
        Engine e(run, world, machine_of(run, {}, ""), batches_of(run));
        spec::RunSpec staged = run;
        staged.parallel.pp = p;
        const auto spans = pipeline::make_pipeline(staged, e.model, kMicrobatches, 0).spans;
        std::vector<std::vector<Tensor>> versions;  // [updates][parameter]
        const auto keep = [&] {
            versions.emplace_back();
            for (const auto* q : e.model.parameters())
                versions.back().push_back(ops::cast(e.ctx, q->value, DType::f32));
        };
        keep();
        const double lr = spec::learning_rate(run, 1);
        ops::Sum losses(e.ctx);
        for (int64_t k = 0; k < kMicrobatches; ++k) {
            e.data_parallel->begin_step(1);
            const auto& parameters = e.model.parameters();
            std::vector<Tensor> newest;
            for (const auto* q : parameters) newest.push_back(q->value);
            for (int s = 0; s < p; ++s)
                for (const autograd::Unit* unit : e.model.units(spans[to_size(s)]))
                    for (autograd::Parameter* q : unit->parameters) {
                        const auto i = std::find(parameters.begin(), parameters.end(), q) - parameters.begin();
                        q->value = versions[to_size(std::max<int64_t>(0, k - (p - 1 - s)))][to_size(i)];
                    }
            nn::Batch batch = e.batches->microbatch(1, k);
            batch.grad_scale *= kMicrobatches;
            autograd::Tape tape(e.ctx, true, e.data_parallel.get());
            const auto loss = e.model.forward(tape, batch);
            losses.add(loss.value);
            tape.backward(loss);
            for (size_t i = 0; i < parameters.size(); ++i) parameters[i]->value = newest[i];
            e.data_parallel->finish_gradients();
            e.optimizer.step(lr, 1);
            keep();
        }
        outcome.loss = losses.take().value() / static_cast<double>(e.batches->valid_tokens(1));
        for (const auto* q : e.model.parameters()) outcome.weights[q->name] = q->value.to_host<float>();
    });
    return outcome;
}

TEST(PipeDreamTest, IsItsDefinition) {
    for (const char* optimizer : {"sgd", "adamw"}) {
        spec::RunSpec run = tiny(optimizer);
        run.parallel.zero = 0;
        const Outcome sequential = by_definition(run, 1);
        for (const int p : {1, 2, 3, 6}) {
            SCOPED_TRACE(concat(optimizer, " over ", p));
            const Outcome expected = by_definition(run, p), found = trained(run, p, p);
            EXPECT_EQ(found.loss, expected.loss);
            EXPECT_EQ(found.weights, expected.weights);
            if (p > 1) {
                EXPECT_NE(found.weights, sequential.weights) << "stale weights train another model";
            }
        }
    }
}

// The masks of a step may leave no target: neither decay nor momentum changes a weight.
class WithoutTargets final : public Batches {
  public:
    explicit WithoutTargets(std::unique_ptr<Batches> all) : all_(std::move(all)) {}
    nn::Batch microbatch(int64_t step, int64_t index) override { return all_->microbatch(step, index); }
    int64_t valid_tokens(int64_t step) override { return step == 2 ? 0 : all_->valid_tokens(step); }

  private:
    std::unique_ptr<Batches> all_;
};

TEST(PipeDreamTest, AStepWithoutTargetsChangesNothing) {
    spec::RunSpec run = tiny("adamw");
    run.parallel.pp = 2;
    run.parallel.schedule = "pipedream";
    const auto batches = [&run](ops::Context& ctx, const BatchShard& share) {
        return std::make_unique<WithoutTargets>(fixed_batches(ctx, run, share));
    };
    comm::run_ranks(2, {.timeout_s = 60}, [&](comm::World& world) {
        Engine engine(run, world, machine_of(run, {}, ""), batches);
        const auto weights = [&] {
            std::vector<std::vector<float>> all;
            for (const optim::ParameterShard& piece : engine.optimizer.parameter_shards())
                all.push_back(piece.master.to_host<float>());
            return all;
        };
        EXPECT_TRUE(std::isfinite(train_step(engine, 1).loss));
        const auto before = weights();
        const int64_t updates = engine.optimizer.updates();
        const StepResult r = train_step(engine, 2);
        EXPECT_TRUE(std::isnan(r.loss));
        EXPECT_FALSE(r.skipped);
        EXPECT_EQ(weights(), before);
        EXPECT_EQ(engine.optimizer.updates(), updates);
        EXPECT_TRUE(std::isfinite(train_step(engine, 3).loss));
    });
}

TEST(PipeDreamTest, BesideDataParallelAndRecompute) {
    spec::RunSpec run = tiny("adamw");
    run.parallel.zero = 0;
    run.train.global_batch = 2 * kMicrobatches;
    const Outcome plain = trained(run, 4, 2);
    run.recompute.policy = "full";
    EXPECT_EQ(trained(run, 4, 2).weights, plain.weights);
}

}  // namespace
}  // namespace tutti::engine
