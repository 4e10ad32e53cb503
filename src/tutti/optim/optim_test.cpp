// Learning-rate schedules at their corners, and the optimizers against the formulas in double.
#include <gtest/gtest.h>

#include <cmath>

#include "tutti/base/philox.h"
#include "tutti/ops/ops.h"
#include "tutti/optim/optimizer.h"
#include "tutti/spec/fields.h"
#include "tutti/spec/learning_rate.h"

namespace tutti::optim {
namespace {

spec::OptimizerSpec spec_of(const std::string& schedule) {
    spec::OptimizerSpec s;
    s.lr = 1.0;
    s.min_lr = 0.1;
    s.warmup_steps = 10;
    s.schedule = schedule;
    return s;
}

TEST(LearningRate, Corners) {
    for (const char* name : {"cosine", "linear", "constant", "wsd"}) {
        EXPECT_DOUBLE_EQ(spec::learning_rate(spec_of(name), 110, 1), 0.1) << name;
        EXPECT_DOUBLE_EQ(spec::learning_rate(spec_of(name), 110, 10), 1.0) << name;
    }
    EXPECT_NEAR(spec::learning_rate(spec_of("cosine"), 110, 60), 0.55, 1e-12);
    EXPECT_NEAR(spec::learning_rate(spec_of("cosine"), 110, 110), 0.1, 1e-12);
    EXPECT_NEAR(spec::learning_rate(spec_of("linear"), 110, 60), 0.55, 1e-12);
    EXPECT_NEAR(spec::learning_rate(spec_of("linear"), 110, 110), 0.1, 1e-12);
    EXPECT_EQ(spec::learning_rate(spec_of("constant"), 110, 110), 1.0);
    EXPECT_EQ(spec::learning_rate(spec_of("wsd"), 110, 99), 1.0);
    EXPECT_NEAR(spec::learning_rate(spec_of("wsd"), 110, 110), 0.1, 1e-12);
    EXPECT_THROW(spec::learning_rate(spec_of("cosin"), 110, 50), Error);
    const spec::RunSpec defaults;
    spec::for_each_field(defaults, [&](const spec::Field& field, const auto&) {
        if (field.path() != "optimizer.schedule") return;
        for (const std::string& name : field.range.choices)
            EXPECT_NO_THROW(spec::learning_rate(spec_of(name), 110, 50));
    });
}

// A moment in bf16 whose increments (1 - beta) x vanish in nearest rounding, half a unit in the last place being 1/256,
// is rounded at random; the second moment always is.
TEST(Moments, AreRoundedAtRandomWhereIncrementsWouldBeLost) {
    spec::OptimizerSpec spec;
    spec.m = spec.v = "bf16";
    const autograd::Parameter weight{.name = "w", .shape = {8, 8}, .role = autograd::Role::row};
    for (const auto& [beta, lost] : {std::pair(0.9, false), {0.99, false}, {0.997, true}, {0.999, true}}) {
        const std::vector<MomentType> moments = moments_of(spec, weight, {{"m", beta}, {"v", 0.95}});
        ASSERT_EQ(moments.size(), 2u);
        EXPECT_EQ(moments[0].stochastic, lost) << beta;
        EXPECT_TRUE(moments[1].stochastic);
        EXPECT_EQ(moments[0].type, DType::bf16);
    }
}

class OptimizerTest : public ::testing::TestWithParam<DType> {
  protected:
    OptimizerTest() : device_(make_cpu_device(1)), ctx_{*device_, kernels::reference_table()} {}
    std::unique_ptr<Device> device_;
    ops::Context ctx_;
};

// Ten updates of both rules, replayed in double from the formulas of Loshchilov and Hutter 2019 (Algorithm 2) and
// of momentum SGD with coupled decay.
TEST_P(OptimizerTest, FollowsTheFormula) {
    // Muon leaves the taps of a convolution, a filter of each channel, to AdamW.
    for (const auto& [name, rule, shape] :
         {std::tuple("adamw", "adamw", Shape{3, 7}), {"sgd", "sgd", Shape{3, 7}}, {"muon", "adamw", Shape{7, 1, 3}}}) {
        Parameter p{.name = "w", .shape = shape, .role = autograd::Role::column, .init = {.std = 1}};
        autograd::materialize(ctx_, p, GetParam(), 5, true);
        spec::OptimizerSpec spec;
        spec.name = name;
        Optimizer optimizer(ctx_, whole_shards({&p}), spec);
        std::vector<double> w, m(21), v(21);
        for (float x : p.master.to_host<float>()) w.push_back(x);
        for (int t = 1; t <= 10; ++t) {
            std::vector<float> g(21);
            for (size_t i = 0; i < 21; ++i) g[i] = normal(random_key(9, "g", static_cast<uint64_t>(t)), i);
            device_->copy_in(p.gradient.view().data, g.data(), p.gradient.bytes());
            optimizer.step(0.01, 0.5);
            for (size_t i = 0; i < 21; ++i) {
                const double gi = 0.5 * static_cast<double>(g[i]);
                if (rule == std::string("adamw")) {
                    m[i] = spec.beta1 * m[i] + (1 - spec.beta1) * gi;
                    v[i] = spec.beta2 * v[i] + (1 - spec.beta2) * gi * gi;
                    const double mhat = m[i] / (1 - std::pow(spec.beta1, t)),
                                 vhat = v[i] / (1 - std::pow(spec.beta2, t));
                    w[i] -= 0.01 * (mhat / (std::sqrt(vhat) + spec.eps) + spec.weight_decay * w[i]);
                } else {
                    m[i] = spec.momentum * m[i] + gi + spec.weight_decay * w[i];
                    w[i] -= 0.01 * m[i];
                }
            }
        }
        const auto master = p.master.to_host<float>();
        const auto value = p.value.to_floats();
        for (size_t i = 0; i < 21; ++i) {
            // Ten steps, each with a handful of f32 roundings of values up to max(|w|, 1).
            EXPECT_NEAR(master[i], w[i], 10 * 8 * 0x1p-24 * std::max(1.0, std::abs(w[i]))) << name;
            EXPECT_EQ(value[i], GetParam() == DType::f32 ? master[i] : static_cast<float>(bf16(master[i])));
        }
    }
}

TEST_P(OptimizerTest, BiasesDoNotDecay) {
    Parameter p{.name = "b", .shape = {4}, .init = {.value = 2}};
    autograd::materialize(ctx_, p, GetParam(), 5, true);
    Optimizer optimizer(ctx_, whole_shards({&p}), {});
    optimizer.step(0.01, 1);
    EXPECT_EQ(p.master.to_host<float>(), std::vector<float>(4, 2.0f));
}

// The moments of a first update in bf16. The first is the nearest number to (1 - beta1) g, half a unit of 2^-7 away at
// most; the second is rounded at random and may be a whole unit away.
TEST_P(OptimizerTest, MomentsAreRoundedToTheNearestOrAtRandom) {
    constexpr size_t kCount = 512;
    Parameter p{.name = "w", .shape = {kCount}, .init = {.std = 1}};
    autograd::materialize(ctx_, p, GetParam(), 5, true);
    std::vector<float> g(kCount);
    for (size_t i = 0; i < kCount; ++i) g[i] = normal(random_key(9, "g"), i);
    device_->copy_in(p.gradient.view().data, g.data(), p.gradient.bytes());
    spec::OptimizerSpec spec;
    spec.m = spec.v = "bf16";
    Optimizer optimizer(ctx_, whole_shards({&p}), spec);
    optimizer.step(0.01, 1);
    size_t far_m = 0, far_v = 0;
    const auto is_far = [](float rounded, double exact) {
        const double unit = std::ldexp(1.0, std::ilogb(exact) - 7);
        EXPECT_LE(std::abs(rounded - exact), 1.001 * unit);
        return std::abs(rounded - exact) > 0.501 * unit;
    };
    for (const StateTensor& state : optimizer.state()) {
        if (state.values.dtype() != DType::bf16 || state.name == "w") continue;
        const std::vector<float> values = state.values.to_floats();
        for (size_t i = 0; i < kCount; ++i) {
            const double x = g[i];
            if (state.name == "optimizer.m.w")
                far_m += is_far(values[i], (1 - spec.beta1) * x);
            else
                far_v += is_far(values[i], (1 - spec.beta2) * x * x);
        }
    }
    EXPECT_EQ(far_m, 0u);
    EXPECT_GT(far_v, kCount / 8);
}

// Updates are element by element: any cut of a parameter into pieces gives the bits of the whole.
TEST_P(OptimizerTest, PiecesAreUpdatedLikeTheWhole) {
    Parameter whole{.name = "w", .shape = {3, 37}, .init = {.std = 1}}, cut = whole;
    for (Parameter* p : {&whole, &cut}) {
        autograd::materialize(ctx_, *p, GetParam(), 5, true);
        std::vector<float> g(111);
        for (size_t i = 0; i < g.size(); ++i) g[i] = normal(random_key(9, "g"), i);
        device_->copy_in(p->gradient.view().data, g.data(), p->gradient.bytes());
    }
    std::vector<ParameterShard> pieces;
    for (const auto& [begin, size] : {std::array<int64_t, 2>{0, 5}, {5, 80}, {85, 26}}) {
        ParameterShard piece = whole_shards({&cut})[0];
        piece.begin = begin;
        piece.gradient_begin = begin;
        for (Tensor* x : {&piece.master, &piece.value}) *x = x->narrow(0, begin, size);
        pieces.push_back(piece);
    }
    Optimizer a(ctx_, whole_shards({&whole}), {}), b(ctx_, pieces, {});
    for (int t = 0; t < 3; ++t) {
        a.step(0.01, 0.5);
        b.step(0.01, 0.5);
    }
    EXPECT_EQ(whole.master.to_host<float>(), cut.master.to_host<float>());
    EXPECT_EQ(whole.value.to_floats(), cut.value.to_floats());
}

// A group's numbers against a run of its own with these numbers, for every rule; the first group that matches counts.
TEST_P(OptimizerTest, GroupsHaveTheirOwnNumbers) {
    for (const char* name : {"adamw", "sgd", "lion"}) {
        spec::OptimizerSpec usual{.name = name, .weight_decay = 0.1}, grouped = usual, other = usual;
        grouped.groups = {{"norm|bias$", 0.5, 0.25}, {"b", 7, 7}};
        other.weight_decay = 0.5;
        std::vector<Parameter> here = {{.name = "h.0.mlp.weight", .shape = {3, 7}, .init = {.std = 1}},
                                       {.name = "h.0.norm1.weight", .shape = {2, 5}, .init = {.std = 1}}};
        std::vector<Parameter> alone = here;
        std::vector<Parameter*> all;
        for (std::vector<Parameter>* of : {&here, &alone})
            for (Parameter& p : *of) {
                autograd::materialize(ctx_, p, GetParam(), 5, true);
                ops::fill(ctx_, p.gradient, 0.5f);
                if (of == &here) all.push_back(&p);
            }
        Optimizer groups(ctx_, whole_shards(all), grouped), first(ctx_, whole_shards({&alone[0]}), usual),
            second(ctx_, whole_shards({&alone[1]}), other);
        for (int t = 0; t < 3; ++t) {
            groups.step(0.01, 1);
            first.step(0.01, 1);
            second.step(0.01 * 0.25, 1);
        }
        for (size_t i = 0; i < 2; ++i)
            EXPECT_EQ(here[i].master.to_host<float>(), alone[i].master.to_host<float>()) << name << i;
    }
}

TEST(Groups, WithoutAParameterAreRefused) {
    Parameter weight{.name = "h.0.mlp.weight", .shape = {3, 7}}, norm{.name = "h.0.norm1.weight", .shape = {3}},
        same{.name = "h.1.norm1.weight", .shape = {3}};
    const auto problem = [&](std::vector<spec::ParameterGroup> groups) {
        spec::OptimizerSpec spec;
        spec.groups = std::move(groups);
        try {
            Rules(spec).check_groups({&weight, &norm, &same});
            return std::string();
        } catch (const UsageError& error) {
            return std::string(error.what());
        }
    };
    EXPECT_EQ(problem({{"norm", 0, 1}, {"mlp", {}, 2}}), "");
    EXPECT_EQ(problem({{"nrom1", 0, 1}}),
              "[optimizer] group with match = \"nrom1\": is found in no name of a trained parameter; the nearest are "
              "h.0.norm1.weight, h.0.mlp.weight");
    EXPECT_EQ(problem({{"weight", 0, 1}, {"norm", 0, 1}}),
              "[optimizer] group with match = \"norm\": earlier groups take all names that it is found in; put it "
              "before them");
    norm.training = same.training = autograd::Training::frozen;
    EXPECT_NE(problem({{"norm", 0, 1}}), "");
}

TEST(Clip, BringsTheNormDown) {
    EXPECT_NEAR(clip_factor(5.0, 1.0), 0.2, 1e-6);
    EXPECT_EQ(clip_factor(0.5, 1.0), 1.0);
    EXPECT_EQ(clip_factor(5.0, 0.0), 1.0);
}

INSTANTIATE_TEST_SUITE_P(Types, OptimizerTest, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& type) { return std::string(name_of(type.param)); });

}  // namespace
}  // namespace tutti::optim
