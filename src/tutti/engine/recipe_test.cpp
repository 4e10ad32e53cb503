// Recipes of 8-bit products under layouts: the bits of a run do not depend on how state is divided, recomputed,
// offloaded or scheduled; where parts of a tensor are on several ranks, only the order of sums does.
#include "tutti/spec/recipe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "tutti/base/float8.h"
#include "tutti/comm/threads/thread_world.h"
#include "tutti/engine/step.h"
#include "tutti/engine/testing/tiny.h"
#include "tutti/nn/quantized.h"

namespace tutti::engine::recipe_test {
namespace {

using Change = std::function<void(spec::RunSpec&)>;

const std::vector<std::string> kRecipes = {"tensor", "delayed", "block", "mxfp8"};

struct Outcome {
    std::vector<double> losses, norms;
    std::vector<float> scales;  // of delayed scaling: histories and factors
    bool operator==(const Outcome&) const = default;
};

Outcome steps(const spec::RunSpec& run, int ranks, int count = 2, bool evaluates = false,
              const std::function<void(Engine&)>& prepare = {}) {
    Outcome outcome;
    comm::run_ranks(ranks, {.timeout_s = 60}, [&](comm::World& world) {
        Engine engine(run, world, machine_of(run, {}, ::testing::TempDir()),
                      [&](ops::Context& ctx, const BatchShard& share) { return fixed_batches(ctx, run, share); });
        if (prepare) prepare(engine);
        for (int step = 1; step <= count; ++step) {
            const StepResult r = train_step(engine, step);
            EXPECT_FALSE(r.skipped) << step;
            if (evaluates) {
                const auto source = fixed_batches(engine.ctx, run, share_of(engine.groups));
                EXPECT_TRUE(evaluate(engine, *source, 1).has_value());
            }
            if (world.rank() > 0) continue;
            outcome.losses.push_back(r.loss);
            outcome.norms.push_back(r.grad_norm);
        }
        engine.data_parallel->wait_for_weights();
        if (world.rank() == 0 && engine.scales)
            for (const auto& state : engine.scales->state())
                for (const float x : state.values.to_host<float>()) outcome.scales.push_back(x);
    });
    return outcome;
}

// Four blocks, the middle two quantized; groups of 128 divide their sizes, also by 2.
spec::RunSpec run_of(const std::string& recipe, const std::string& compute) {
    spec::RunSpec run = testing::tiny_llama(4, 4);
    run.model.width = 256, run.model.heads = run.model.kv_heads = 4, run.model.head_dim = 64, run.model.ffn = 256;
    run.model.init_std = 0.06;
    run.precision.compute = compute;
    run.precision.recipe = recipe;
    return run;
}

spec::RunSpec moe_of(spec::RunSpec run) {
    run.model.moe = {.experts = 4, .top_k = 2, .ffn = 128};
    return run;
}

struct Layout {
    const char* name;
    int ranks;
    Change change;
};

TEST(Recipes, HaveTheSameBitsHoweverStateIsHeldAndPassesAreOrdered) {
    const Layout layouts[] = {
        {"selective", 1, [](spec::RunSpec& r) { r.recompute.policy = "selective"; }},
        {"recompute", 1, [](spec::RunSpec& r) { r.recompute.policy = "full"; }},
        {"offload", 1, [](spec::RunSpec& r) { r.offload.activations = r.offload.optimizer = true; }},
        {"pp", 2, [](spec::RunSpec& r) { r.parallel.pp = 2; }},
        {"zb-h1", 2, [](spec::RunSpec& r) { r.parallel.pp = 2, r.parallel.schedule = "zb-h1"; }},
        {"gpipe, threads", 2,
         [](spec::RunSpec& r) { r.parallel.pp = 2, r.parallel.schedule = "gpipe", r.train.threads = 2; }},
    };
    const Layout of_two[] = {
        // against ZeRO-1 over two ranks
        {"zero 0", 2, [](spec::RunSpec& r) { r.parallel.zero = 0; }},
        {"zero 2", 2, [](spec::RunSpec& r) { r.parallel.zero = 2; }},
        {"zero 3, recompute", 2, [](spec::RunSpec& r) { r.parallel.zero = 3, r.recompute.policy = "full"; }},
        {"zero 3, offload", 2, [](spec::RunSpec& r) { r.parallel.zero = 3, r.offload.params = true; }},
    };
    for (const char* recipe : {"none", "tensor", "delayed", "block", "mxfp8"})
        for (const bool experts : {false, true}) {
            spec::RunSpec run = run_of(recipe, "bf16");
            if (experts) run = moe_of(run);
            const auto compare = [&](const auto& all, int ranks) {
                const Outcome one = steps(run, ranks);
                EXPECT_NE(one.losses[0], one.losses[1]);
                for (const Layout& layout : all) {
                    spec::RunSpec other = run;
                    layout.change(other);
                    EXPECT_EQ(steps(other, layout.ranks), one)
                        << recipe << ", " << layout.name << ", experts " << experts;
                }
            };
            compare(layouts, 1);
            compare(of_two, 2);
        }
}

// Codes that are gathered are those of gathered values. `ffn` 384: a shard of two ends inside of a block of 128 x 128.
TEST(Recipes, HaveTheSameBitsWhereWeightsAreGatheredAsCodes) {
    struct GatheredLayout : Layout {
        int64_t ffn = 384;
        bool experts = false;
    };
    const GatheredLayout layouts[] = {
        {{"shards", 2, [](spec::RunSpec& r) { r.recompute.policy = "full"; }}},
        {{"accumulated", 2, [](spec::RunSpec& r) { r.parallel.accumulate = "full", r.precision.master = "none"; }}},
        {{"offload", 2, [](spec::RunSpec& r) { r.offload.params = r.offload.optimizer = true; }}},
        {{"three shards x tp", 6, [](spec::RunSpec& r) { r.parallel.tp = 2, r.train.global_batch = 6; }}, 512},
        {{"replicas", 4, [](spec::RunSpec& r) { r.parallel.dp_replicate = 2; }}},
        {{"zb-h1", 4, [](spec::RunSpec& r) { r.parallel.pp = 2, r.parallel.schedule = "zb-h1"; }}},
        {{"unsharded", 4, [](spec::RunSpec& r) { r.parallel.pp = 2, r.parallel.unsharded_stages = 1; }}},
        {{"cp", 2, [](spec::RunSpec& r) { r.parallel.cp = 2, r.train.seq_len = r.model.max_positions = 512; }}},
        {{"ep", 4, [](spec::RunSpec& r) { r.parallel.ep = 2; }}, 384, true},
        {{"ep x etp", 4, [](spec::RunSpec& r) { r.parallel.tp = r.parallel.etp = r.parallel.ep = 2; }}, 512, true},
    };
    for (const char* recipe : {"tensor", "delayed", "block"})
        for (const GatheredLayout& layout : layouts) {
            spec::RunSpec run = run_of(recipe, "bf16");
            if (layout.experts) run = moe_of(run), run.model.moe.ffn = 256;
            run.model.ffn = layout.ffn;
            run.parallel.zero = 3;
            layout.change(run);
            ASSERT_EQ(spec::recipe_problems(run), std::vector<std::string>()) << layout.name;
            const Outcome values = steps(run, layout.ranks, 3);
            EXPECT_NE(values.losses[0], values.losses[2]);
            run.precision.gather = "weights";
            ASSERT_EQ(spec::recipe_problems(run), std::vector<std::string>()) << layout.name;
            EXPECT_EQ(steps(run, layout.ranks, 3), values) << recipe << ", " << layout.name;
        }
}

// The codes of each rank along tp have the scale of the whole tensor. Scales are powers of two, so a smaller one
// changes only codes below the least normal number: the second rank's weights are made so small.
TEST(Recipes, GatherCodesOfTheScaleOfTheWholeTensor) {
    const auto shrink = [](Engine& engine) {
        const float factor = engine.groups.coordinate(mesh::kTp) == 1 ? std::ldexp(1.0F, -11) : 1;
        engine.data_parallel->load_masters([&] {
            for (const optim::ParameterShard& shard : engine.data_parallel->parameter_shards())
                if (shard.parameter->rule) ops::scale(engine.ctx, shard.master, factor);
        });
    };
    spec::RunSpec run = run_of("tensor", "bf16");
    run.parallel.tp = 2, run.parallel.zero = 3;
    const Outcome values = steps(run, 4, 2, false, shrink);
    EXPECT_NE(values.losses[0], values.losses[1]);
    run.precision.gather = "weights";
    EXPECT_EQ(steps(run, 4, 2, false, shrink), values);
}

// A stage of one block still has the codes of an evaluation when the next step begins. The step gathers them again: the
// magnitudes of its weights belong to the histories.
TEST(Recipes, GatherCodesAgainAfterAnEvaluation) {
    spec::RunSpec run = run_of("delayed", "bf16");
    run.parallel.pp = 4, run.parallel.zero = 3;
    const Outcome values = steps(run, 8, 3, true);
    EXPECT_NE(values.losses[0], values.losses[2]);
    run.precision.gather = "weights";
    EXPECT_EQ(steps(run, 8, 3, true), values);
}

// All-gathers of one step on the first rank, in bytes sent.
int64_t gathered_bytes(const spec::RunSpec& run, int ranks, int64_t& coded) {
    int64_t sent = 0;
    comm::run_ranks(ranks, {.timeout_s = 60}, [&](comm::World& world) {
        Engine engine(run, world, machine_of(run, {}, ::testing::TempDir()),
                      [&](ops::Context& ctx, const BatchShard& share) { return fixed_batches(ctx, run, share); });
        const auto before = engine.groups.traffic();
        EXPECT_FALSE(train_step(engine, 1).skipped);
        if (world.rank() > 0) return;
        for (const autograd::Parameter* p : engine.model.parameters()) coded += p->rule ? p->shape.numel() : 0;
        for (const auto& t : parallel::difference(engine.groups.traffic(), before))
            if (t.operation == comm::Kind::all_gather) sent += t.traffic.sent;
    });
    return sent;
}

// A forward and a backward gather the weights of the recipe's blocks, 1 byte a value in place of 2; of two ranks each
// sends its half.
TEST(Recipes, GatherHalfOfTheBytesOfWeights) {
    spec::RunSpec run = run_of("block", "bf16");
    run.parallel.zero = 3;
    run.train.global_batch = 2;
    int64_t coded = 0, again = 0;
    const int64_t values = gathered_bytes(run, 2, again);
    run.precision.gather = "weights";
    const int64_t codes = gathered_bytes(run, 2, coded);
    EXPECT_EQ(values - codes, 2 * coded / 2);
    EXPECT_EQ(coded, 2 * 7 * 256 * 256);
}

TEST(Recipes, HaveTheSameBitsWhereSequencesAreGatheredAsCodes) {
    struct SequenceLayout : Layout {
        const char* gather = "sequences";
        bool gelu = false;
    };
    const SequenceLayout layouts[] = {
        {{"tp", 2, [](spec::RunSpec& r) { r.train.micro_batch = 2; }}},
        {{"recompute", 2, [](spec::RunSpec& r) { r.recompute.policy = "full"; }}},
        {{"selective", 2, [](spec::RunSpec& r) { r.recompute.policy = "selective"; }}},
        {{"zb-h1", 4, [](spec::RunSpec& r) { r.parallel.pp = 2, r.parallel.schedule = "zb-h1"; }}},
        {{"cp", 4, [](spec::RunSpec& r) { r.parallel.cp = 2; }}},
        {{"weights too", 4, [](spec::RunSpec& r) { r.parallel.zero = 3; }}, "all"},
        {{"shared heads", 4, [](spec::RunSpec& r) { r.parallel.tp = 4, r.model.kv_heads = 2; }}},
        {{"biases", 2, [](spec::RunSpec& r) { r.model.family = spec::Family::gpt2; }}, "sequences", true},
    };
    for (const char* recipe : {"tensor", "delayed"})
        for (const SequenceLayout& layout : layouts) {
            spec::RunSpec run = run_of(recipe, "bf16");
            run.parallel.tp = 2;
            run.train.seq_len = run.model.max_positions = 64;
            layout.change(run);
            ASSERT_EQ(spec::recipe_problems(run), std::vector<std::string>()) << layout.name;
            const Outcome values = steps(run, layout.ranks, 3);
            EXPECT_NE(values.losses[0], values.losses[2]);
            run.precision.gather = layout.gather;
            ASSERT_EQ(spec::recipe_problems(run), std::vector<std::string>()) << layout.name;
            EXPECT_EQ(steps(run, layout.ranks, 3), values) << recipe << ", " << layout.name;
        }
}

// Two blocks of four have the recipe. In each the inputs of q, k, v and of gate, up are gathered in the forward, and
// the gradients of two outputs in the backward: (B, T, C) of 1 byte a value in place of 2.
TEST(Recipes, GatherHalfOfTheBytesOfSequences) {
    spec::RunSpec run = run_of("delayed", "bf16");
    run.parallel.tp = 2;
    int64_t coded = 0;
    const int64_t values = gathered_bytes(run, 2, coded);
    run.precision.gather = "sequences";
    const int64_t microbatches = 4, T = 8, C = 256, blocks = 2, of_block = 4;
    EXPECT_EQ(values - gathered_bytes(run, 2, coded), microbatches * blocks * of_block * T * C / 2);
}

double relative(double a, double b) { return std::abs(a - b) / std::abs(b); }

// In f32 the sums of a layer differ from one rank's by 1e-7. A code that this moves over a border moves one value by
// 6 %, which moves further codes; losses and norms over thousands of values differ by 1e-4 and 1e-3 then, a tenth of
// what 8 bits make of them.
TEST(Recipes, UnderTensorAndContextParallelismFollowOneRank) {
    const Layout layouts[] = {
        {"tp", 2, [](spec::RunSpec& r) { r.parallel.tp = 2; }},
        {"tp without sp", 2, [](spec::RunSpec& r) { r.parallel.tp = 2, r.parallel.sequence_parallel = false; }},
        {"cp", 2, [](spec::RunSpec& r) { r.parallel.cp = 2; }},
        {"ulysses", 2, [](spec::RunSpec& r) { r.parallel.cp = 2, r.parallel.cp_method = "ulysses"; }},
        {"tp x cp x pp, zero 3", 8,
         [](spec::RunSpec& r) { r.parallel.tp = r.parallel.cp = r.parallel.pp = 2, r.parallel.zero = 3; }},
    };
    for (const std::string& recipe : kRecipes) {
        spec::RunSpec run = run_of(recipe, "f32");
        if (recipe == "tensor") run.precision.scales = "f32";
        run.train.seq_len = run.model.max_positions = 512;  // chunks of 128 tokens
        run.train.global_batch = 2;
        const Outcome one = steps(run, 1, 1);
        for (const Layout& layout : layouts) {
            spec::RunSpec other = run;
            layout.change(other);
            EXPECT_EQ(spec::recipe_problems(other), std::vector<std::string>()) << layout.name;
            const Outcome many = steps(other, layout.ranks, 1);
            EXPECT_LT(relative(many.losses[0], one.losses[0]), 5e-4) << recipe << ", " << layout.name;
            EXPECT_LT(relative(many.norms[0], one.norms[0]), 5e-3) << recipe << ", " << layout.name;
        }
    }
}

// Values whose magnitudes rise along both dims, so that no part has the scale of the whole.
Tensor rising(ops::Context& ctx, int64_t rows, int64_t columns, int64_t first_row, int64_t first_column,
              int64_t some_rows, int64_t some_columns) {
    std::vector<float> values;
    for (int64_t r = first_row; r < first_row + some_rows; ++r)
        for (int64_t c = first_column; c < first_column + some_columns; ++c)
            values.push_back(std::ldexp(1.5f, static_cast<int>(4 * r / rows + 4 * c / columns)));
    return ops::cast(ctx, Tensor::from_host<float>(ctx.device, {some_rows, some_columns}, values, Purpose::activations),
                     DType::bf16);
}

// The rule that each layer has under tp x cp takes the scale of the whole tensor for every part of x, dy and w.
TEST(Recipes, TakeTheScaleOfAWholeTensorOverTheRanksThatHaveParts) {
    constexpr int64_t kRows = 64, kColumns = 128;
    for (const bool whole : {true, false}) {
        spec::RunSpec run = run_of("tensor", "bf16");
        run.parallel.tp = run.parallel.cp = 2;
        if (!whole) run.precision.scale_over = "rank";
        comm::run_ranks(4, {.timeout_s = 60}, [&](comm::World& world) {
            Engine engine(run, world, machine_of(run, {}, ::testing::TempDir()),
                          [&](ops::Context& ctx, const BatchShard& share) { return fixed_batches(ctx, run, share); });
            ops::Context& ctx = engine.ctx;
            const int64_t tp = engine.groups.coordinate(mesh::kTp), cp = engine.groups.coordinate(mesh::kCp);
            // This rank's part: of rows by cp, of columns by tp.
            const auto part = [&](bool by_cp, bool by_tp) {
                return rising(ctx, kRows, kColumns, by_cp ? cp * kRows / 2 : 0, by_tp ? tp * kColumns / 2 : 0,
                              by_cp ? kRows / 2 : kRows, by_tp ? kColumns / 2 : kColumns);
            };
            const float divisor = 1 / float8_factor(std::ldexp(1.5f, 6), kE4m3, 1e38f, true);
            const float of_gradients = 1 / float8_factor(std::ldexp(1.5f, 6), kE5m2, 1e38f, true);
            int wrong = 0;
            const auto expect = [&](const ops::Operand& q, float expected) {
                wrong += q.scales.to_host<float>() != std::vector<float>{expected};
            };
            for (const auto& [name, row] : {std::pair{"q_proj", false}, {"k_proj", false}, {"o_proj", true}}) {
                autograd::Parameter& p = engine.model.parameter(concat("model.layers.1.self_attn.", name, ".weight"));
                ASSERT_NE(p.rule, nullptr);
                for (const auto role : {ops::GemmRole::forward, ops::GemmRole::weight_gradient})
                    expect(p.rule->input(ctx, part(true, row), {role}), divisor);
                for (const auto role : {ops::GemmRole::input_gradient, ops::GemmRole::weight_gradient})
                    expect(p.rule->gradient(ctx, part(true, !row), {role}), of_gradients);
                const Tensor before = p.value;
                p.value = part(false, true);
                for (const auto role : {ops::GemmRole::forward, ops::GemmRole::input_gradient})
                    expect(p.rule->weight(ctx, p, {role}), divisor);
                p.value = before;
            }
            // Only the rank with the largest values finds their scale alone.
            EXPECT_EQ(wrong == 0, whole || (tp == 1 && cp == 1)) << wrong;
        });
    }
}

// The first step has no history and scales as `tensor` does; later ones cast with the factor that the steps before
// left. A step that is skipped teaches nothing.
TEST(Recipes, DelayedScalesFollowTheStepsBefore) {
    spec::RunSpec run = run_of("delayed", "bf16");
    run.precision.amax_history = 2;
    spec::RunSpec current = run;
    current.precision.recipe = "tensor";
    const Outcome delayed = steps(run, 1, 3), of_tensors = steps(current, 1, 3);
    EXPECT_EQ(delayed.losses[0], of_tensors.losses[0]);
    EXPECT_EQ(delayed.norms[0], of_tensors.norms[0]);
    ASSERT_FALSE(delayed.scales.empty());
    // Of each layer 3 histories of 2 steps, then 3 factors: powers of two that bring the largest below the format's.
    for (size_t layer = 0; layer < delayed.scales.size(); layer += 9)
        for (size_t i = 0; i < 3; ++i) {
            const float first = delayed.scales[layer + 2 * i], second = delayed.scales[layer + 2 * i + 1];
            if (second == 0) continue;  // x of a layer that reads another's input
            EXPECT_GT(first, 0);
            EXPECT_EQ(delayed.scales[layer + 6 + i],
                      float8_factor(std::max(first, second), i == 2 ? kE5m2 : kE4m3, largest_of(DType::bf16), true));
        }
    comm::run_ranks(1, {.timeout_s = 60}, [&](comm::World& world) {
        Engine engine(run, world, machine_of(run, {}, ::testing::TempDir()),
                      [&](ops::Context& ctx, const BatchShard& share) { return fixed_batches(ctx, run, share); });
        const auto state = [&] {
            std::vector<float> all;
            for (const auto& s : engine.scales->state())
                for (const float x : s.values.to_host<float>()) all.push_back(x);
            return all;
        };
        std::map<std::string, float> largest;
        for (const autograd::Parameter* w : engine.model.parameters())
            for (const float v : w->rule ? w->value.to_floats() : std::vector<float>())
                largest[w->name] = std::max(largest[w->name], std::abs(v));
        EXPECT_FALSE(train_step(engine, 1).skipped);
        // The newest magnitude of w is that of its values, not of their codes.
        size_t compared = 0;
        for (const auto& s : engine.scales->state())
            for (const auto& [name, magnitude] : largest) {
                if (s.name != concat("precision.", name, ".amax")) continue;
                EXPECT_EQ(s.values.to_host<float>()[3], magnitude) << name;
                ++compared;
            }
        EXPECT_EQ(compared, largest.size());
        EXPECT_EQ(compared, 2 * 7U);
        const std::vector<float> before = state();
        autograd::Parameter& p = engine.model.parameter("model.layers.1.mlp.up_proj.weight");
        const Tensor whole = p.value;
        ops::fill(engine.ctx, p.value, INFINITY);
        EXPECT_TRUE(train_step(engine, 2).skipped);
        EXPECT_EQ(state(), before);
    });
}

TEST(Recipes, ChooseTheLayersOfTheMiddleBlocks) {
    spec::RunSpec run = moe_of(run_of("mxfp8", "bf16"));
    run.precision.bf16_first = 2;
    comm::run_ranks(1, {.timeout_s = 60}, [&](comm::World& world) {
        Engine engine(run, world, machine_of(run, {}, ::testing::TempDir()),
                      [&](ops::Context& ctx, const BatchShard& share) { return fixed_batches(ctx, run, share); });
        std::vector<std::string> quantized;
        for (const autograd::Parameter* p : engine.model.parameters())
            if (p->rule) quantized.push_back(p->name);
        const std::string block = "model.layers.2.", moe = block + "mlp.";
        const std::vector<std::string> expected = {block + "self_attn.q_proj.weight", block + "self_attn.k_proj.weight",
                                                   block + "self_attn.v_proj.weight",
                                                   block + "self_attn.o_proj.weight"};
        ASSERT_GE(quantized.size(), expected.size() + 3);
        for (const std::string& name : expected)
            EXPECT_NE(std::find(quantized.begin(), quantized.end(), name), quantized.end()) << name;
        for (const std::string& name : quantized) {
            EXPECT_EQ(name.rfind(block, 0), 0u) << name;
            EXPECT_EQ(name.find("norm"), std::string::npos) << name;
        }
        EXPECT_EQ(quantized.size(), 7u);  // and gate, up and down of the experts; not the router
    });
}

}  // namespace
}  // namespace tutti::engine::recipe_test
