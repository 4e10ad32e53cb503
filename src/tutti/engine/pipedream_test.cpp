// PipeDream against its definition, computed on one rank: forward and backward of microbatch k with the weights that
// stage s had after max(0, k - (p - 1 - s)) updates, and an update by the mean over its own targets.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <mutex>

#include "tutti/base/testing/scratch.h"
#include "tutti/base/to_size.h"
#include "tutti/comm/threads/thread_world.h"
#include "tutti/data/sampler.h"
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

// Microbatches of one rank whose first targets are masked, as prompts are; all of the third.
class Masked final : public Batches {
  public:
    Masked(Device& device, std::unique_ptr<Batches> all) : device_(device), all_(std::move(all)) {}
    nn::Batch microbatch(int64_t step, int64_t index) override {
        nn::Batch batch = all_->microbatch(step, index);
        std::vector<int32_t> targets = batch.targets.to_host<int32_t>();
        std::fill_n(targets.begin(), kMasked[to_size(index)], -1);
        batch.targets = Tensor::from_host<int32_t>(device_, batch.targets.shape(), targets, Purpose::data);
        batch.grad_scale = 1.0f / static_cast<float>(valid_tokens(step));
        return batch;
    }
    int64_t valid_tokens(int64_t step) override {
        int64_t sum = 0;
        for (int64_t i = 0; i < kMicrobatches; ++i) sum += valid_tokens_of(step, i);
        return sum;
    }
    int64_t valid_tokens_of(int64_t, int64_t index) override { return 8 - kMasked[to_size(index)]; }

  private:
    static constexpr std::array<int64_t, kMicrobatches> kMasked = {0, 3, 8, 5, 1, 7};
    Device& device_;
    std::unique_ptr<Batches> all_;
};
MakeBatches masked_of(const spec::RunSpec& run) {
    return [&run](ops::Context& ctx, const BatchShard& share) {
        return std::make_unique<Masked>(ctx.device, fixed_batches(ctx, run, share));
    };
}

// Windows of JSONL records, whose prompts are masked.
MakeBatches records_of(const spec::RunSpec& run, const std::string& file) {
    return [&run, file](ops::Context& ctx, const BatchShard& share) {
        spec::DataSpec data;
        data.train = {file};
        const auto set = data::open(data, run.model.vocab, run.train.seq_len, {.write = false});
        return token_batches(ctx.device, data::Sampler::in_order(set.train, run.train.seq_len), run.train.micro_batch,
                             run.train.global_batch, share);
    };
}

struct Outcome {
    double loss = 0;
    Weights weights;
};

Outcome trained(spec::RunSpec run, int ranks, int64_t pp, const MakeBatches& batches = {}) {
    run.parallel.pp = pp;
    run.parallel.schedule = "pipedream";
    Outcome outcome;
    std::mutex mutex;
    comm::run_ranks(ranks, {.timeout_s = 60}, [&](comm::World& world) {
        Engine engine(run, world, machine_of(run, {}, ""), batches ? batches : batches_of(run));
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
Outcome by_definition(const spec::RunSpec& run, int p, const MakeBatches& batches) {
    Outcome outcome;
    comm::run_ranks(1, {}, [&](comm::World& world) {
        Engine e(run, world, machine_of(run, {}, ""), batches);
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
            const std::vector<int32_t> targets = batch.targets.to_host<int32_t>();
            const auto own = std::count_if(targets.begin(), targets.end(), [](int32_t id) { return id >= 0; });
            batch.grad_scale = own > 0 ? 1.0f / static_cast<float>(own) : 0;
            autograd::Tape tape(e.ctx, true, e.data_parallel.get());
            const auto loss = e.model.forward(tape, batch);
            losses.add(loss.value);
            tape.backward(loss);
            for (size_t i = 0; i < parameters.size(); ++i) parameters[i]->value = newest[i];
            e.data_parallel->finish_gradients();
            if (own > 0) e.optimizer.step(lr, 1);
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
        for (const bool masked : {false, true}) {
            const MakeBatches batches = masked ? masked_of(run) : batches_of(run);
            const Outcome sequential = by_definition(run, 1, batches);
            for (const int p : {1, 2, 3, 6}) {
                SCOPED_TRACE(concat(optimizer, " over ", p, masked ? ", masked" : ""));
                const Outcome expected = by_definition(run, p, batches), found = trained(run, p, p, batches);
                EXPECT_EQ(found.loss, expected.loss);
                EXPECT_EQ(found.weights, expected.weights);
                if (p > 1) {
                    EXPECT_NE(found.weights, sequential.weights) << "stale weights train another model";
                }
            }
        }
    }
}

// Two data-parallel ranks of one window each update as one rank does with both windows.
TEST(PipeDreamTest, TheTargetsOfAMicrobatchAreThoseOfAllRanks) {
    const ScratchFolder folder;
    std::string lines;
    for (int i = 0; i < 40; ++i)
        lines +=
            concat("{\"prompt\": \"", std::string(1 + to_size(i % 5), 'p'), "\", \"completion\": \"", i * i, "\"}\n");
    spec::RunSpec run = tiny("sgd");
    run.model.vocab = 256;
    run.parallel.zero = 0;
    run.train.global_batch = 2 * kMicrobatches;
    const MakeBatches batches = records_of(run, folder.write("records.jsonl", lines));
    const Outcome two = trained(run, 4, 2, batches);
    run.train.micro_batch = 2;
    const Outcome one = trained(run, 2, 2, batches);
    EXPECT_NEAR(two.loss, one.loss, 1e-5 * one.loss);
    ASSERT_EQ(two.weights.size(), one.weights.size());
    for (const auto& [name, values] : one.weights)
        for (size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(two.weights.at(name)[i], values[i], 1e-5) << name;
}

// The masks of a step may leave no target: neither decay nor momentum changes a weight.
class WithoutTargets final : public Batches {
  public:
    explicit WithoutTargets(std::unique_ptr<Batches> all) : all_(std::move(all)) {}
    nn::Batch microbatch(int64_t step, int64_t index) override { return all_->microbatch(step, index); }
    int64_t valid_tokens(int64_t step) override { return step == 2 ? 0 : all_->valid_tokens(step); }
    int64_t valid_tokens_of(int64_t step, int64_t index) override {
        return step == 2 ? 0 : all_->valid_tokens_of(step, index);
    }

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
