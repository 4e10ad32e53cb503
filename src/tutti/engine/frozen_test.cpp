// Frozen parameters (autograd::Training): they keep their bits and cost no gradient memory, products, sums or state,
// and all others get the gradients that they had, under every stage of ZeRO, tensor parallelism and pipelines.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <mutex>
#include <tuple>

#include "tutti/base/to_size.h"
#include "tutti/comm/meta/meta_world.h"
#include "tutti/comm/threads/thread_world.h"
#include "tutti/engine/step.h"
#include "tutti/engine/testing/rig.h"
#include "tutti/engine/testing/tiny.h"

namespace tutti::engine::frozen_test {
namespace {

using autograd::Parameter;
using autograd::Training;

using Values = std::map<std::string, std::vector<float>>;

// Of all ranks, by the names of parameters.
struct Outcome {
    Values gradients;                // of the first step
    Values before, after;            // weights: initial ones, and after two steps
    std::vector<std::string> state;  // tensors of the optimizer
};

void collect(std::mutex& mutex, const std::vector<optim::ParameterShard>& shards, Values& all,
             const std::function<Tensor(const optim::ParameterShard&)>& which) {
    const std::lock_guard lock(mutex);
    for (const optim::ParameterShard& piece : shards) {
        const Shape& shape = piece.parameter->shape;
        const Tensor tensor = which(piece);
        if (!piece.owned || !tensor.defined()) continue;
        auto& whole = all.try_emplace(piece.parameter->name, to_size(shape.numel()), NAN).first->second;
        const std::vector<float> values = tensor.to_floats();
        for (const auto& held : piece.blocks())
            mesh::for_each_run(held.block, mesh::whole_block(shape), held.block,
                               [&](int64_t to, int64_t from, int64_t n) {
                                   std::copy_n(values.begin() + held.begin + from, n, whole.begin() + to);
                               });
    }
}

Outcome train(const spec::RunSpec& run, int ranks, const std::vector<std::string>& frozen) {
    Outcome outcome;
    std::mutex mutex;
    const Factories factories{.model = [&](ops::Context& ctx, const spec::ModelSpec& spec, int64_t positions) {
        models::Model model = models::make_model(ctx, spec, positions);
        for (const std::string& pattern : frozen) models::freeze(model, pattern);
        return model;
    }};
    comm::run_ranks(ranks, {}, [&](comm::World& world) {
        const auto batches = [&](ops::Context& ctx, const BatchShard& share) { return fixed_batches(ctx, run, share); };
        Engine engine(run, world, machine_of(run, {0, 1}, ""), batches, factories);
        const auto shards = engine.data_parallel->parameter_shards();
        const auto weights = [](const optim::ParameterShard& p) { return p.master; };
        collect(mutex, shards, outcome.before, weights);
        train_step(engine, 1);
        collect(mutex, shards, outcome.gradients,
                [](const optim::ParameterShard& p) { return p.parameter->frozen() ? Tensor() : p.gradient(); });
        train_step(engine, 2);
        engine.data_parallel->wait_for_weights();
        collect(mutex, shards, outcome.after, weights);
        if (world.rank() == 0)
            for (const optim::StateTensor& s : engine.optimizer.state()) outcome.state.push_back(s.name);
    });
    return outcome;
}

struct Layout {
    const char* name;
    int ranks;
    int64_t tp, pp, zero;
    std::string schedule = "1f1b", recompute = "none", compute = "f32";
};

// The embedding, all of a layer, a norm and a half of the feed-forward part of others, and the head.
const std::vector<std::string> kFrozen = {"model.embed_tokens.weight", "model.layers.1.*", "*input_layernorm*",
                                          "model.layers.2.mlp.gate_proj.weight", "lm_head.weight"};

class Frozen : public ::testing::TestWithParam<Layout> {};

TEST_P(Frozen, KeepTheirBitsAndOthersTheirGradients) {
    const Layout& l = GetParam();
    spec::RunSpec run = testing::tiny_llama(4, 8);
    run.parallel.tp = l.tp;
    run.parallel.pp = l.pp;
    run.parallel.zero = l.zero;
    run.parallel.schedule = l.schedule;
    run.recompute.policy = l.recompute;
    run.precision.compute = l.compute;
    const Outcome all = train(run, l.ranks, {}), some = train(run, l.ranks, kFrozen);
    for (const auto& [name, before] : some.before) {
        std::vector<float> drawn = all.before.at(name);  // masters; a frozen parameter has its value alone
        if (l.compute == "bf16" && !some.gradients.contains(name))
            for (float& x : drawn) x = static_cast<float>(bf16(x));
        EXPECT_TRUE(before == drawn) << name;
    }
    EXPECT_EQ(all.gradients.size(), 4u * 9 + 3);
    EXPECT_EQ(some.gradients.size(), all.gradients.size() - 1 - 9 - 3 - 1 - 1);
    for (const auto& [name, gradient] : some.gradients) {
        EXPECT_EQ(gradient, all.gradients.at(name)) << name;
        EXPECT_NE(some.after.at(name), some.before.at(name)) << name;
    }
    for (const auto& [name, before] : some.before) {
        if (some.gradients.contains(name)) continue;
        EXPECT_EQ(some.after.at(name), before) << name;
    }
    for (const std::string& name : some.state) {
        if (!name.starts_with("optimizer.")) continue;  // a master
        EXPECT_TRUE(some.gradients.contains(name.substr(name.find('.', std::strlen("optimizer.")) + 1))) << name;
    }
}

INSTANTIATE_TEST_SUITE_P(Layouts, Frozen,
                         ::testing::Values(Layout{"one_rank", 1, 1, 1, 0}, Layout{"zero0", 2, 1, 1, 0},
                                           Layout{"zero1", 2, 1, 1, 1}, Layout{"zero2", 2, 1, 1, 2},
                                           Layout{"zero3", 2, 1, 1, 3}, Layout{"tp_zero1", 4, 2, 1, 1},
                                           Layout{"pp_zero2", 4, 1, 2, 2}, Layout{"tp_pp_zero3", 8, 2, 2, 3},
                                           Layout{"pp_zb_h1", 2, 1, 2, 1, "zb-h1"},
                                           Layout{"recompute_zero3", 2, 1, 1, 3, "1f1b", "full"},
                                           Layout{"bf16_zero1", 2, 1, 1, 1, "1f1b", "selective", "bf16"},
                                           Layout{"bf16_tp_pp_zero3", 8, 2, 2, 3, "1f1b", "none", "bf16"}),
                         [](const auto& one) { return one.param.name; });

// A frozen router still sends tokens to experts and passes gradients to its input; a frozen bias of experts is neither
// counted for nor changed. With pipelines and experts over ranks, and their capacity not limited.
TEST(FrozenMixture, RouterAndExpertBias) {
    const std::vector<std::string> frozen = {"*.gate.weight", "*.expert_bias"};
    for (const auto& [ranks, pp, ep, zero] :
         {std::tuple{1, 1, 1, 0}, {2, 1, 2, 1}, {2, 2, 1, 1}, {4, 2, 2, 2}, {4, 2, 2, 3}}) {
        const std::string what = concat(ranks, " ranks, pp ", pp, ", ep ", ep, ", ZeRO-", zero);
        spec::RunSpec run = testing::tiny_llama(2, 4);
        run.model.moe = {.experts = 4, .top_k = 2, .ffn = 24, .score = "sigmoid", .expert_bias = true};
        run.parallel.pp = pp;
        run.parallel.ep = ep;
        run.parallel.zero = zero;
        const Outcome all = train(run, ranks, {}), some = train(run, ranks, frozen);
        size_t routers = 0;
        for (const auto& [name, before] : some.before) {
            const bool is_frozen = name.ends_with(".gate.weight") || name.ends_with("expert_bias");
            routers += is_frozen ? 1 : 0;
            EXPECT_EQ(some.gradients.contains(name), !is_frozen) << name << ", " << what;
            EXPECT_TRUE(before == all.before.at(name)) << name << ", " << what;
            EXPECT_EQ(some.after.at(name) == before, is_frozen) << name << ", " << what;
            EXPECT_NE(all.after.at(name), all.before.at(name)) << name << ", " << what;
            if (!is_frozen) {
                EXPECT_EQ(some.gradients.at(name), all.gradients.at(name)) << name << ", " << what;
            }
        }
        EXPECT_EQ(routers, 4u) << what;
        for (const std::string& name : some.state)
            EXPECT_FALSE(name.starts_with("optimizer.") && name.find("gate.weight") != name.npos) << name;
    }
}

class ProductFlops final : public ops::Meter {
  public:
    double flops = 0;
    void after_kernel(Device&, const char* kernel, const kernels::Work& work) override {
        if (std::string(kernel).starts_with("gemm")) flops += work.flops;
    }
};

struct Cost {
    double products = 0;
    int64_t gradients = 0, optimizer = 0, reduced = 0;  // bytes
};

Cost cost_of_step(bool freezes, parallel::Zero zero) {
    Cost cost;
    comm::MetaWorld world(0, 2, nullptr);
    testing::RigOptions options{.model = testing::tiny_llama(3, 2).model,
                                .mesh = testing::mesh_of(1, 1, 2, 1),
                                .data_parallel = {.zero = zero, .compute = DType::bf16}};
    if (freezes)
        options.alter = [](Parameter& p) {
            if (p.name != "model.norm.weight") p.training = Training::frozen;
        };
    testing::Rig rig(world, options, true);
    const optim::Optimizer optimizer(rig.ctx, rig.data_parallel.parameter_shards(), {});
    Allocator& memory = rig.ctx.device.memory();
    memory.reset_peaks();
    ProductFlops meter;
    rig.ctx.meter = &meter;
    const auto before = rig.groups.traffic();
    rig.step({{autograd::PassKind::forward, 0, 0}, {autograd::PassKind::backward, 0, 0}}, 1);
    cost.products = meter.flops;
    cost.gradients = memory.usage(Purpose::gradients).peak;
    cost.optimizer = memory.usage(Purpose::optimizer).peak;
    for (const parallel::GroupTraffic& t : parallel::difference(rig.groups.traffic(), before))
        if (t.operation == comm::Kind::all_reduce || t.operation == comm::Kind::reduce_scatter)
            cost.reduced += t.traffic.bytes;
    return cost;
}

// All but the last norm (16 values) frozen: of three products of each matrix the forward and the input gradient are
// left; gradient, master and moments are those of 16 values, of which ZeRO pads the first two to a grain of the shards.
TEST(FrozenCost, IsThatOfTheForwardAndTheInputGradient) {
    for (const parallel::Zero zero : {parallel::Zero::none, parallel::Zero::weights}) {
        const Cost all = cost_of_step(false, zero), one = cost_of_step(true, zero);
        const int64_t values = zero == parallel::Zero::none ? 16 : parallel::kShardGrain;
        EXPECT_DOUBLE_EQ(one.products, 2.0 / 3 * all.products);
        EXPECT_EQ(one.gradients, 4 * values);
        EXPECT_EQ(one.optimizer, 4 * values + 2 * 4 * 16);
        EXPECT_GT(all.gradients, 10 * one.gradients);
        EXPECT_GT(all.reduced, 10 * one.reduced);
        EXPECT_GT(one.reduced, 0);
    }
}

TEST(Freeze, MatchesByStarsAndNeedsAMatch) {
    models::Model model = models::outline(spec::preset("llama-tiny"));
    models::freeze(model, "model.layers.*.self_attn.*_proj.weight");
    models::freeze(model, "model.norm.weight");
    for (const Parameter* p : model.parameters())
        EXPECT_EQ(p->frozen(), p->name.find("self_attn") != p->name.npos || p->name == "model.norm.weight") << p->name;
    EXPECT_THROW(models::freeze(model, "model.norm"), UsageError);
    EXPECT_THROW(models::freeze(model, "*.bias"), UsageError);
}

}  // namespace
}  // namespace tutti::engine::frozen_test
