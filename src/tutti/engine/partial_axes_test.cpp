// The results of parallel::apply() and of DataParallel: a gradient is summed over the axes along which it is a partial
// sum, each element is counted and saved once over the world, and a wrong axis is detected.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>

#include "tutti/comm/threads/thread_world.h"
#include "tutti/engine/testing/rig.h"

namespace tutti::engine::partial_axes_test {
namespace {

using autograd::Parameter;
using autograd::PassKind;
using mesh::Axes;
using mesh::Axis;
using mesh::kDp;
using mesh::kTp;
using parallel::Zero;
using testing::mesh_of;
using testing::Rig;
using testing::RigOptions;

spec::ModelSpec tiny(spec::Family family) {
    const bool gpt2 = family == spec::Family::gpt2;
    spec::ModelSpec model{.family = family,
                          .vocab = 131,
                          .width = 16,
                          .layers = 2,
                          .heads = 4,
                          .kv_heads = gpt2 ? 4 : 2,
                          .head_dim = 4,
                          .ffn = 24,
                          .max_positions = Rig::kTokens,
                          .tie_embeddings = gpt2,
                          .init_std = 0.2};
    model.head_norm = !gpt2;
    return model;
}

// Eight ranks: tp = 4 of a model with 2 key and value heads, dp = 2.
TEST(Apply, SaysWhatARankHoldsAndWhereItsGradientIsSummed) {
    const auto device = make_cpu_device(1);
    ops::Context ctx{*device, kernels::reference_table()};
    models::Model model = models::make_model(ctx, tiny(spec::Family::llama), Rig::kTokens);
    const mesh::Mesh mesh = mesh_of(2, 2, 2, 1);
    struct Expected {
        const char* name;
        Shape local;
        Axes partial, copies;  // beyond data parallelism
        Axes partial_of_sequence;
    };
    const Axes none;
    const Expected all[] = {
        {"model.layers.1.input_layernorm.weight", {16}, none, kTp, kTp},
        {"model.layers.1.self_attn.q_proj.weight", {4, 16}, none, none, none},
        {"model.layers.1.self_attn.k_proj.weight", {4, 16}, Axis::tp_copy, Axis::tp_copy, Axis::tp_copy},
        {"model.layers.1.self_attn.v_proj.weight", {4, 16}, Axis::tp_copy, Axis::tp_copy, Axis::tp_copy},
        {"model.layers.1.self_attn.q_norm.weight", {4}, kTp, kTp, kTp},
        {"model.layers.1.self_attn.k_norm.weight", {4}, kTp, kTp, kTp},
        {"model.layers.1.self_attn.o_proj.weight", {16, 4}, none, none, none},
        {"model.layers.1.mlp.gate_proj.weight", {6, 16}, none, none, none},
        {"model.layers.1.mlp.down_proj.weight", {16, 6}, none, none, none},
        {"model.embed_tokens.weight", {64, 16}, none, none, none},  // 3 tiles of 64 over 4 ranks
        {"lm_head.weight", {64, 16}, none, none, none},
    };
    for (const bool sequence_parallel : {false, true}) {
        parallel::apply(model.parameters(), mesh, 5, {nullptr, sequence_parallel});
        for (const Expected& e : all) {
            const Parameter& p = model.parameter(e.name);
            EXPECT_EQ(p.part().shape, e.local) << e.name;
            EXPECT_EQ(p.copies, kDp | e.copies) << e.name;
            EXPECT_EQ(p.partial, kDp | (sequence_parallel ? e.partial_of_sequence : e.partial)) << e.name;
        }
    }
    // Rank 5 is the second of tp_copy and the first of tp_part: query head 1, key head 0; words 64 to 127.
    EXPECT_EQ(model.parameter("model.layers.1.self_attn.q_proj.weight").part().blocks[0].block.offset, (Shape{4, 0}));
    EXPECT_EQ(model.parameter("model.layers.1.self_attn.k_proj.weight").part().blocks[0].block.offset, (Shape{0, 0}));
    EXPECT_EQ(model.parameter("model.embed_tokens.weight").part().blocks[0].block, (mesh::Block{{64, 0}, {64, 16}}));
    EXPECT_THROW(parallel::apply(model.parameters(), mesh_of(1, 3, 1, 1), 0, {}), UsageError);  // 4 heads over 3
}

struct Outcome {
    std::map<std::string, std::vector<float>> values;  // from all ranks
    std::map<std::string, std::vector<int>> owners;    // of each element
    double norm = 0;

    void add(const std::map<std::string, std::vector<float>>& owned) {
        for (const auto& [name, some] : owned) {
            auto& whole = values.try_emplace(name, some.size(), 0.0f).first->second;
            auto& count = owners.try_emplace(name, some.size(), 0).first->second;
            for (size_t i = 0; i < some.size(); ++i) {
                if (std::isnan(some[i])) continue;
                whole[i] = some[i];
                ++count[i];
            }
        }
    }
    bool owned_once() const {
        for (const auto& [name, count] : owners)
            for (const int n : count)
                if (n != 1) return false;
        return true;
    }
};

// Gradients of a step of two microbatches on each of `ranks` ranks.
Outcome gradients(int ranks, const RigOptions& options) {
    Outcome outcome;
    std::mutex mutex;
    comm::run_ranks(ranks, {.timeout_s = 60}, [&](comm::World& world) {
        Rig rig(world, options);
        rig.step({{PassKind::forward, 0, 0},
                  {PassKind::backward, 0, 0},
                  {PassKind::forward, 0, 1},
                  {PassKind::backward, 0, 1}},
                 2);
        const double norm = rig.data_parallel.gradient_norm();
        const auto owned = rig.owned([](const optim::ParameterShard& p) { return p.gradient(); });
        const std::lock_guard lock(mutex);
        outcome.add(owned);
        outcome.norm = norm;
    });
    return outcome;
}

bool agrees(const Outcome& expected, const Outcome& found) {
    if (!found.owned_once() || std::abs(found.norm - expected.norm) > 1e-6 * expected.norm) return false;
    for (const auto& [name, a] : expected.values) {
        const std::vector<float>& b = found.values.at(name);
        double difference = 0, size = 0;
        for (size_t i = 0; i < a.size(); ++i) {
            difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
            size += static_cast<double>(a[i]) * static_cast<double>(a[i]);
        }
        if (difference > 1e-12 * size) return false;
    }
    return true;
}

RigOptions options_of(spec::Family family, const mesh::Mesh& mesh, Zero zero) {
    return {.model = tiny(family), .mesh = mesh, .data_parallel = {.zero = zero, .compute = DType::f32, .seed = 7}};
}

// As if nothing were cut over tensor parallelism: every rank holds all of each parameter.
void hold_everything(Parameter& p) {
    p.local.reset();
    p.tensor_parallel = {};
    p.copies = kDp | kTp;
    p.partial = kDp;
}

struct Wrong {
    std::string parameter;
    Axes partial, copies;  // to be flipped: removed from the set, or added to it
};

// Four ranks with different samples sum over tp and dp; or two samples, and tp ranks hold copies of one computation.
RigOptions two_by_two(spec::Family family, Zero zero, bool tp_sees_parts, const Wrong& wrong = {}) {
    RigOptions options = options_of(family, mesh_of(1, 2, 2, 1), zero);
    if (tp_sees_parts) options.samples = kDp | kTp;
    options.alter = [=](Parameter& p) {
        hold_everything(p);
        if (tp_sees_parts) p.partial = kDp | kTp;
        if (p.name != wrong.parameter) return;
        const auto turned = [](Axes set, Axes axes) { return (set - axes) | (axes - set); };
        p.partial = turned(p.partial, wrong.partial);
        p.copies = turned(p.copies, wrong.copies);
    };
    return options;
}

TEST(PartialAxes, AreSummedAndEveryElementIsCountedOnce) {
    for (const spec::Family family : {spec::Family::llama, spec::Family::gpt2}) {
        const Outcome four = gradients(4, options_of(family, mesh_of(1, 1, 4, 1), Zero::none));
        const Outcome two = gradients(2, options_of(family, mesh_of(1, 1, 2, 1), Zero::none));
        for (const Zero zero : {Zero::none, Zero::optimizer, Zero::gradients, Zero::weights}) {
            EXPECT_TRUE(agrees(four, gradients(4, two_by_two(family, zero, true)))) << static_cast<int>(zero);
            EXPECT_TRUE(agrees(two, gradients(4, two_by_two(family, zero, false)))) << static_cast<int>(zero);
            EXPECT_TRUE(agrees(four, gradients(4, options_of(family, mesh_of(1, 1, 2, 2), zero))));
        }
    }
}

// An axis too few or too many, in either set of any parameter.
TEST(PartialAxes, AWrongOneIsNoticed) {
    const spec::Family family = spec::Family::llama;
    const Outcome four = gradients(4, options_of(family, mesh_of(1, 1, 4, 1), Zero::none));
    const Outcome two = gradients(2, options_of(family, mesh_of(1, 1, 2, 1), Zero::none));
    for (const auto& [name, values] : four.values)
        for (const Zero zero : {Zero::none, Zero::weights}) {
            SCOPED_TRACE(concat(name, ", zero ", static_cast<int>(zero)));
            for (const Axes axis : {Axes(Axis::dp_shard), Axes(Axis::tp_part)}) {
                EXPECT_FALSE(agrees(four, gradients(4, two_by_two(family, zero, true, {name, axis, {}}))));
                EXPECT_FALSE(agrees(two, gradients(4, two_by_two(family, zero, false, {name, axis, {}}))));
                // With ZeRO the shards along dp_shard differ: that axis is no axis of copies.
                if (zero == Zero::none || axis != Axes(Axis::dp_shard)) {
                    EXPECT_FALSE(agrees(four, gradients(4, two_by_two(family, zero, true, {name, {}, axis}))));
                }
            }
        }
}

// The ranks of any mesh together hold what one rank holds: each element owned once, with its initial value, and zeros
// where a part is padded.
TEST(Parts, OfAllRanksAreTheWholeWithTheInitialValuesOfOne) {
    const auto masters = [](int ranks, const RigOptions& options) {
        Outcome outcome;
        std::mutex mutex;
        comm::run_ranks(ranks, {.timeout_s = 60}, [&](comm::World& world) {
            Rig rig(world, options);
            for (const optim::ParameterShard& piece : rig.data_parallel.parameter_shards()) {
                std::vector<float> values = piece.master.to_host<float>();
                for (const auto& [block, begin] : piece.blocks())
                    std::fill_n(values.begin() + begin, block.numel(), 0.0f);
                for (const float padding : values) ASSERT_EQ(padding, 0) << piece.parameter->name;
            }
            const auto owned = rig.owned([](const optim::ParameterShard& p) { return p.master; });
            const std::lock_guard lock(mutex);
            outcome.add(owned);
        });
        return outcome;
    };
    for (const spec::Family family : {spec::Family::llama, spec::Family::gpt2}) {
        const Outcome one = masters(1, options_of(family, mesh_of(1, 1, 1, 1), Zero::none));
        EXPECT_TRUE(one.owned_once());
        for (const mesh::Mesh& mesh :
             {mesh_of(1, 2, 1, 1), mesh_of(1, 2, 2, 1), mesh_of(1, 2, 1, 2), mesh_of(2, 2, 1, 1), mesh_of(2, 2, 2, 1)})
            for (const Zero zero : {Zero::none, Zero::optimizer, Zero::weights}) {
                const Outcome found = masters(mesh.size(), options_of(family, mesh, zero));
                EXPECT_TRUE(found.owned_once());
                EXPECT_EQ(found.values, one.values);
            }
    }
}

}  // namespace
}  // namespace tutti::engine::partial_axes_test
