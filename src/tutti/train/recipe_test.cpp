// Runs with 8-bit products: the memory and the messages of a step are those rehearsed, to the byte (SmallRun checks
// every run of a test), and a run that goes on from a checkpoint under another layout has the bits of one that was not
// interrupted.
#include <gtest/gtest.h>

#include <algorithm>

#include "tutti/train/testing/small_run.h"

namespace tutti::train {
namespace {

using Settings = std::vector<std::string>;

class RecipeRuns : public SmallRun {
  protected:
    // Three blocks, of which the middle one is quantized; groups of 128 divide what tp divides.
    TrainOptions run(const std::string& out, const std::string& recipe, Settings more, int ranks) const {
        Settings set = {"model.layers=3",
                        "model.kv_heads=2",
                        "model.head_dim=128",
                        "model.ffn=256",
                        "optimizer.schedule=\"constant\"",
                        "optimizer.warmup_steps=0",
                        "precision.recipe=" + recipe};
        set.insert(set.end(), more.begin(), more.end());
        return options(out, set, ranks);
    }
};

TEST_F(RecipeRuns, TakeTheMemoryThatWasRehearsed) {
    struct Layout {
        Settings set;
        int ranks;
    };
    const Layout layouts[] = {
        {{}, 1},
        {{"recompute.policy=selective", "offload.activations=true"}, 1},
        {{"recompute.policy=full", "parallel.zero=3"}, 2},
        {{"recompute.policy=full", "parallel.zero=3", "precision.gather=weights"}, 2},
        {{"parallel.tp=2", "precision.bf16_first=0"}, 2},
        {{"parallel.tp=2", "parallel.zero=3", "precision.bf16_first=0", "precision.gather=all"}, 4},
        {{"parallel.tp=2", "parallel.zero=3", "parallel.pp=2", "precision.bf16_first=0", "precision.bf16_last=0",
          "precision.gather=weights"},
         8},
        {{"parallel.pp=2", "parallel.schedule=zb-h1"}, 2},
        {{"model.moe.experts=4", "model.moe.top_k=4", "model.moe.ffn=128", "parallel.ep=2"}, 2}};
    int runs = 0;
    for (const char* recipe : {"tensor", "delayed", "block", "mxfp8"})
        for (const Layout& layout : layouts) {
            const auto has = [&](const char* set) { return std::ranges::find(layout.set, set) != layout.set.end(); };
            if (recipe == std::string("mxfp8") && has("precision.gather=weights")) continue;
            const bool whole = recipe == std::string("tensor") || recipe == std::string("delayed");
            if (!whole && has("precision.gather=all")) continue;
            Settings set = layout.set;
            set.push_back("train.steps=2");
            const TrainOptions o = run(concat(recipe, ++runs), recipe, set, layout.ranks);
            EXPECT_EQ(train(o).step, 2) << recipe << ' ' << joined(layout.set, " ");
        }
}

TEST_F(RecipeRuns, GoOnUnderAnotherLayoutWithTheSameBits) {
    for (const char* recipe : {"tensor", "delayed", "block", "mxfp8"}) {
        const TrainOptions whole = run(concat(recipe, "-whole"), recipe, {"train.steps=4"}, 2);
        EXPECT_EQ(train(whole).step, 4);
        const std::string cut = concat(recipe, "-cut");
        EXPECT_EQ(train(run(cut, recipe, {"train.steps=2"}, 2)).step, 2);
        const TrainOptions rest =
            run(cut, recipe, {"train.steps=4", "parallel.zero=3", "recompute.policy=selective"}, 2);
        EXPECT_EQ(train(rest).step, 4);
        EXPECT_EQ(weights(rest), weights(whole)) << recipe;  // with the histories of delayed scaling
        if (recipe == std::string("mxfp8")) continue;
        const std::string codes = concat(recipe, "-codes");
        EXPECT_EQ(train(run(codes, recipe, {"train.steps=2", "parallel.zero=3", "precision.gather=weights"}, 2)).step,
                  2);
        const TrainOptions more = run(codes, recipe, {"train.steps=4"}, 2);
        EXPECT_EQ(train(more).step, 4);
        EXPECT_EQ(weights(more), weights(whole)) << recipe << ", first gathered as codes";
    }
}

// Only scales of earlier steps saturate: with a learning rate that makes activations grow, later steps do. In each
// recipe some gradients of the first step become 0. A step in bf16 has neither number.
TEST_F(RecipeRuns, LogWhatCastsLose) {
    const auto lost = [](const std::string& line) {
        const Json json = Json::parse(line);
        const auto of = [&](const char* key) { return json.contains(key) ? json.at(key).get<double>() : -1; };
        return std::pair(of("fp8_saturated"), of("fp8_flushed"));
    };
    using Shares = std::vector<std::pair<double, double>>;
    for (const char* recipe : {"none", "tensor", "delayed", "block"}) {
        const Settings set = {"train.steps=6", "optimizer.lr=0.05", "precision.amax_of=most_recent"};
        const TrainOptions one = run(concat("lost-", recipe), recipe, set, 1);
        EXPECT_EQ(train(one).step, 6);
        const Shares shares = logged(one, lost);
        if (recipe == std::string("none")) {
            for (const auto& [saturated, flushed] : shares)
                EXPECT_EQ(std::pair(saturated, flushed), std::pair(-1., -1.));
            continue;
        }
        double saturated = 0;
        for (const auto& [s, f] : shares) {
            saturated += s;
            EXPECT_LT(f, 0.5) << recipe;
        }
        EXPECT_GT(shares[0].second, 0) << recipe;
        EXPECT_EQ(saturated > 0, recipe == std::string("delayed")) << recipe << ' ' << saturated;
        EXPECT_EQ(shares[0].first, 0) << recipe;  // a first step scales by itself
        // Counts of all ranks: the same microbatches, the same casts.
        Settings of_two = set;
        of_two.push_back("parallel.pp=2");
        const TrainOptions two = run(concat("lost-pp-", recipe), recipe, of_two, 2);
        EXPECT_EQ(train(two).step, 6);
        EXPECT_EQ(logged(two, lost), shares) << recipe;
    }
}

// A run that changes from 8-bit products to bf16, or back, stays the same run: histories start empty, and histories of
// the checkpoint that the recipe does not use are no error.
TEST_F(RecipeRuns, BeginAndEndWithinARun) {
    EXPECT_EQ(train(run("mixed", "none", {"train.steps=1"}, 1)).step, 1);
    EXPECT_EQ(train(run("mixed", "delayed", {"train.steps=2"}, 1)).step, 2);
    EXPECT_EQ(train(run("mixed", "delayed", {"train.steps=3", "precision.amax_history=4"}, 1)).step, 3);
    EXPECT_EQ(train(run("mixed", "none", {"train.steps=4"}, 1)).step, 4);
}

}  // namespace
}  // namespace tutti::train
