// tutti verify finds a layout equal to one rank where it is, and not where something is wrong.
#include "tutti/train/verify.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tutti/train/testing/small_run.h"

namespace tutti::train {
namespace {

spec::RunSpec mlp(const std::string& compute) {
    spec::RunSpec run;
    run.model = {.family = spec::Family::mlp, .width = 24, .layers = 3};
    run.train.seq_len = 4;
    run.train.global_batch = 8;
    run.train.micro_batch = 1;
    run.train.threads = 1;
    run.optimizer.warmup_steps = 1;
    run.precision.compute = compute;
    return run;
}

TEST(Verify, OneRankIsItselfToTheBit) {
    const VerifyOutcome o = verify({.run = mlp("bf16"), .ranks = 1});
    EXPECT_TRUE(o.equal);
    EXPECT_TRUE(o.within());
    EXPECT_EQ(o.steps.size(), 3U);
    EXPECT_EQ(o.worst().gradient_difference, 0);
}

TEST(Verify, LayoutsFollowOneRankWithinTheBound) {
    for (const char* compute : {"f32", "bf16"})
        for (const int zero : {0, 1, 2, 3}) {
            spec::RunSpec run = mlp(compute);
            run.parallel.zero = zero;
            const VerifyOutcome o = verify({.run = run, .ranks = 4, .steps = 2});
            EXPECT_TRUE(o.within()) << compute << zero << ": " << o.worst().gradient_difference;
            EXPECT_EQ(o.steps[0].loss, o.steps[0].one_rank_loss) << "the loss is an exact sum of equal values";
        }
}

TEST(Verify, TheBoundIsOfRoundingOnly) {
    const auto cut = [](const char* compute) {
        spec::RunSpec run = mlp(compute);
        run.parallel.cp = 2;
        return run;
    };
    EXPECT_EQ(verify_bound(cut("f32")), 1e-5);
    EXPECT_EQ(verify_bound(mlp("bf16")), 1e-5) << "only sums in f32 are in another order";
    EXPECT_EQ(verify_bound(cut("tf32")), verify_bound(cut("bf16")) / 8);
    EXPECT_LT(verify_bound(cut("bf16")), 0.05) << "a dropped or doubled sum of two ranks differs by a third";
    VerifiedStep step{.step = 2, .bound = 1e-5, .weight_bound = 1e-6, .gradient_difference = 2e-5};
    EXPECT_FALSE(step.within());
    step = {.step = 2, .bound = 1e-5, .weight_bound = 1e-6, .weight_difference = 2e-6};
    EXPECT_FALSE(step.within());
    step.weight_difference = std::nan("");
    EXPECT_FALSE(step.within());
}

// A model whose gradients rounding alone moves by a half shows nothing: the verdict is not that the layout is wrong.
TEST(Verify, SaysWhereRoundingHidesAFault) {
    VerifiedStep step{.bound = 0.25, .rounding = 0.5, .weight_bound = 1e-6, .gradient_difference = 0.4};
    EXPECT_TRUE(step.undecided());
    VerifyOutcome outcome{.steps = {{.bound = 1e-5, .gradient_difference = 1e-6}, step}, .equal = false};
    EXPECT_TRUE(outcome.undecided());
    EXPECT_NE(reason_beyond_bound(mlp("bf16"), outcome).find("0.5 on one rank"), std::string::npos);
    for (double VerifiedStep::*wrong : {&VerifiedStep::gradient_difference, &VerifiedStep::weight_difference}) {
        outcome.steps[1] = step;
        outcome.steps[1].*wrong = 0.6;
        EXPECT_FALSE(outcome.undecided());
        EXPECT_EQ(reason_beyond_bound(mlp("bf16"), outcome), "");
    }
    outcome.steps.pop_back();
    EXPECT_FALSE(outcome.undecided()) << "every step is within its bound";
}

// Each of the ranks that share a key head has a part of the head's gradient, and codes of parts are not the whole's.
TEST(Verify, SaysThatPartsOfAGradientHaveOtherCodes) {
    spec::RunSpec run;
    run.model = spec::preset("llama-tiny");
    run.precision.recipe = "delayed";
    run.parallel.tp = static_cast<int>(run.model.kv_heads);
    EXPECT_EQ(reason_beyond_bound(run, {}), "");
    run.parallel.tp *= 2;
    EXPECT_NE(reason_beyond_bound(run, {}).find(concat("set tp = ", run.model.kv_heads)), std::string::npos);
    run.precision.recipe = "none";
    EXPECT_EQ(reason_beyond_bound(run, {}), "");
}

// moe-tiny in bf16 under ep = 2, tp = 2 was "NOT the same as one rank" and no more, though the layout is right.
TEST(Verify, SaysThatARouterMayExceedTheBoundBelowF32) {
    spec::RunSpec run;
    run.model = spec::preset("moe-tiny");
    run.precision.compute = "bf16";
    EXPECT_NE(reason_beyond_bound(run, {}).find("--set precision.compute=f32"), std::string::npos);
    run.precision.compute = "f32";
    EXPECT_EQ(reason_beyond_bound(run, {}), "");
    EXPECT_EQ(reason_beyond_bound(mlp("bf16"), {}), "");
}

TEST(Verify, ComparesWithOneRankAndNothingElse) {
    spec::RunSpec run = mlp("f32");
    run.parallel.zero = 3;
    run.recompute.policy = "full";
    const spec::RunSpec one = one_rank_of(run);
    EXPECT_EQ(one.parallel.zero, 0);
    EXPECT_EQ(one.recompute.policy, "none");
    spec::TrainSpec train = run.train;
    train.packed_weights = "never";  // of ZeRO-3, which frees weights
    EXPECT_EQ(one.train, train);
    EXPECT_EQ(one.model, run.model);
}

// Right layouts of models and rules in which rounding alone decides some gradient, or some update: a bias of keys,
// which has no effect on the softmax; queries that see one key; signs, codes, stochastic rounding, and
// Newton-Schulz products, which magnify a difference.
class VerifySmall : public SmallRun {
  protected:
    void expect_same(const std::vector<std::string>& model) const {
        const std::pair<int, std::vector<std::string>> layouts[] = {{2, {"parallel.zero=3"}},
                                                                    {4, {"parallel.tp=2", "parallel.zero=2"}},
                                                                    {2, {"parallel.cp=2"}},
                                                                    {2, {"parallel.pp=2", "parallel.schedule=zb-h1"}}};
        for (const auto& [ranks, layout] : layouts) {
            std::vector<std::string> set = {"train.micro_batch=1", "precision.compute=f32", "optimizer.warmup_steps=0"};
            set.insert(set.end(), layout.begin(), layout.end());
            set.insert(set.end(), model.begin(), model.end());
            const TrainOptions o = options("verify", set, ranks);
            const VerifyOutcome outcome = verify({.run = o.run, .ranks = ranks, .steps = 4});
            const VerifiedStep worst = outcome.worst();
            EXPECT_TRUE(outcome.within())
                << model.front() << ' ' << layout.front() << ": gradient " << worst.gradient_difference << ' '
                << worst.gradient << ", weight " << worst.weight_difference << ' ' << worst.weight;
        }
    }
};

TEST_F(VerifySmall, GradientsThatAreZeroButForRounding) {
    expect_same({"model.qkv_bias=true"});
    expect_same({"model.window=1"});
    expect_same({"model.moe.experts=4", "model.moe.top_k=1", "model.moe.normalise=false", "model.moe.ffn=16"});
}

TEST_F(VerifySmall, RulesThatMagnifyRounding) {
    expect_same({"optimizer.name=lion"});
    expect_same({"optimizer.name=muon"});
    expect_same({"optimizer.name=muon", "precision.compute=bf16"});
    expect_same({"optimizer.m=bf16", "optimizer.v=bf16"});
    expect_same({"optimizer.name=sgd", "precision.compute=bf16", "precision.master=none"});
}

// Rounding that a large model's weights magnify is measured. Where the weights have no masters, moving one by less than
// a unit in the last place would measure nothing; in f16 without a loss scale gradients are subnormal.
TEST_F(VerifySmall, MeasuresWhatAModelMakesOfRounding) {
    const std::vector<std::vector<std::string>> runs = {
        {"precision.compute=bf16", "precision.master=none"},
        {"precision.compute=bf16"},
        {"precision.compute=f16", "precision.loss_scale=1"},
        {"precision.compute=f32", "precision.gradients=bf16"},
        {"precision.compute=bf16", "precision.recipe=delayed", "precision.scales=f32", "precision.bf16_first=0"},
        {"precision.compute=f32", "precision.recipe=delayed", "precision.scales=f32", "precision.bf16_first=0"}};
    for (std::vector<std::string> set : runs) {
        const std::string name = concat(set[0], ' ', set.back());
        for (const char* more :
             {"model.init_std=0.3", "parallel.tp=2", "train.micro_batch=1", "optimizer.warmup_steps=0"})
            set.emplace_back(more);
        const TrainOptions o = options("magnified", set, 2);
        const VerifyOutcome outcome = verify({.run = o.run, .ranks = 2, .steps = 4});
        const VerifiedStep worst = outcome.worst();
        EXPECT_TRUE(outcome.within()) << name << ": " << worst.gradient_difference << ' ' << worst.gradient
                                      << ", bound " << worst.bound;
        EXPECT_LE(worst.bound, 0.25) << name << ": hides a sum of two ranks that is missing";
    }
}

TEST_F(VerifySmall, DataParallelismInBf16IsComparedLikeF32InEveryStep) {
    const TrainOptions o = options("bf16", {"precision.compute=bf16", "parallel.zero=3", "train.micro_batch=1"}, 4);
    for (const VerifiedStep& step : verify({.run = o.run, .ranks = 4, .steps = 4}).steps) {
        EXPECT_EQ(step.bound, 1e-5);
        EXPECT_TRUE(step.within()) << step.gradient_difference << ' ' << step.gradient;
    }
}

}  // namespace
}  // namespace tutti::train
