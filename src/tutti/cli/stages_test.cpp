// cli/stages_test.cpp: what the commands say of a config with [[stage]].
#include <gtest/gtest.h>

#include "tutti/base/json.h"
#include "tutti/base/to_size.h"
#include "tutti/cli/testing/run.h"

namespace tutti::cli {
namespace {

struct StagesCommand : CommandTest {
    StagesCommand() {
        std::string text;
        for (int i = 0; i < 500; ++i) text += concat("line ", i * i, " of a text\n");
        write("text.txt", text);
        config = write("run.toml", concat("[model]\nwidth = 32\nlayers = 2\nheads = 2\nkv_heads = 2\nhead_dim = 16\n"
                                          "ffn = 48\n[data]\ntrain = \"",
                                          path("text.txt"),
                                          "\"\n[train]\nsteps = 9\nseq_len = 16\nglobal_batch = 4\nmicro_batch = 1\n"
                                          "threads = 1\n[precision]\ncompute = \"f32\"\n"
                                          "[[stage]]\nuntil = 3\n"
                                          "[[stage]]\nuntil = 6\ntrain.seq_len = 64\nmodel.rope_theta = 5e5\n"
                                          "[[stage]]\ntrain.seq_len = 32\noptimizer.lr = 1e-4\n"));
    }
    std::string config;
};

TEST_F(StagesCommand, RehearseShowsTheLargest) {
    ASSERT_EQ(run_words("rehearse", {config, "--ranks", "2", "--json"}), 0) << err;
    const Json all = Json::parse(out);
    ASSERT_EQ(all["stages"].size(), 3u);
    for (const int stage : {1, 2, 3}) {
        ASSERT_EQ(run_words("rehearse", {config, "--ranks", "2", "--stage", std::to_string(stage), "--json"}), 0)
            << err;
        const Json alone = Json::parse(out);
        const Json& of_all = all["stages"][to_size(stage - 1)];
        EXPECT_EQ(of_all["peak_bytes"], alone["peak_bytes"]) << stage;
        EXPECT_EQ(of_all["first"], 3 * stage - 2);
        EXPECT_EQ(of_all["last"], 3 * stage);
        if (stage == 2) {
            EXPECT_EQ(all["peak_bytes"], alone["peak_bytes"]);
        } else {
            EXPECT_GT(all["peak_bytes"].get<int64_t>(), alone["peak_bytes"].get<int64_t>());
        }
    }
    EXPECT_EQ(all["stage"], 2);
    ASSERT_EQ(run_words("train", {config, "--dry-run"}), 0) << err;
    EXPECT_TRUE(says("2 until step 6: model.rope_theta = 5e5, train.seq_len = 64; peak ")) << out;
    EXPECT_TRUE(says("largest")) << out;
}

TEST_F(StagesCommand, VerifyComparesEach) {
    ASSERT_EQ(run_words("verify", {config, "--ranks", "2", "--steps", "2", "--set", "parallel.tp=2", "--json"}), 0)
        << err;
    const Json document = Json::parse(out);
    EXPECT_EQ(document["differs"], false);
    ASSERT_EQ(document["stages"].size(), 3u);
    for (size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(document["stages"][i]["within_bound"], true);
        EXPECT_EQ(document["stages"][i]["steps"][0]["step"], 3 * i + 1);
    }
    ASSERT_EQ(run_words("verify", {config, "--ranks", "2", "--stage", "3", "--json"}), 0) << err;
    EXPECT_EQ(Json::parse(out)["steps"][0]["step"], 7);
}

// Each stage is rehearsed, verified and simulated under its own layout: as a config with that layout is.
TEST_F(StagesCommand, EachHasItsLayout) {
    const std::string stages =
        "stage=[{until = 3}, {until = 6, train.seq_len = 64, parallel.cp = 2, parallel.tp = 2}, "
        "{parallel.cp = 1, parallel.tp = 1, parallel.pp = 2, parallel.zero = 3, parallel.schedule = \"gpipe\"}]";
    const std::vector<std::vector<std::string>> alone = {
        {},
        {"train.seq_len=64", "parallel.cp=2", "parallel.tp=2"},
        {"train.seq_len=64", "parallel.pp=2", "parallel.zero=3", "parallel.schedule=gpipe"}};
    ASSERT_EQ(run_words("rehearse", {config, "--ranks", "4", "--set", stages, "--json"}), 0) << err;
    const Json all = Json::parse(out);
    for (size_t i = 0; i < 3; ++i) {
        const std::string stage = std::to_string(i + 1);
        std::vector<std::string> words = {config, "--ranks", "4", "--set", "stage=[]", "--json"};
        for (const std::string& set : alone[i]) words.insert(words.end(), {"--set", set});
        ASSERT_EQ(run_words("rehearse", words), 0) << err;
        const Json one = Json::parse(out);
        EXPECT_EQ(all["stages"][i]["peak_bytes"], one["peak_bytes"]) << stage;
        ASSERT_EQ(run_words("rehearse", {config, "--ranks", "4", "--set", stages, "--stage", stage, "--json"}), 0)
            << err;
        EXPECT_EQ(Json::parse(out)["communication"], one["communication"]) << stage;
        ASSERT_EQ(
            run_words("simulate", {config, "--ranks", "4", "--cluster", "h100", "--set", stages, "--stage", stage}), 0)
            << err;
    }
    ASSERT_EQ(run_words("verify", {config, "--ranks", "4", "--set", stages, "--json"}), 0) << err;
    EXPECT_EQ(Json::parse(out)["stages"].size(), 3u);
    ASSERT_EQ(run_words("plan", {config, "--ranks", "4", "--cluster", "h100", "--set", stages}), 0) << err;
    // What cannot be in one stage is said before anything starts, and by its name.
    EXPECT_EQ(run_words("train", {config, "--ranks", "4", "--out", path("none"), "--set",
                                  "stage=[{until = 3}, {until = 6, parallel.cp = 2}, {parallel.pp = 4}]"}),
              2);
    EXPECT_TRUE(says("stage 3: [parallel] ")) << err;
    EXPECT_FALSE(says("stage 2: ")) << err;
}

TEST_F(StagesCommand, CommandsAboutOneStepAskWhich) {
    EXPECT_EQ(run_words("simulate", {config, "--cluster", "h100"}), 2);
    EXPECT_TRUE(says("the run has 3 stages, and simulate is about a step of one of them; give --stage 1 to 3")) << err;
    EXPECT_EQ(run_words("simulate", {config, "--cluster", "h100", "--stage", "2"}), 0) << err;
    EXPECT_EQ(run_words("simulate", {config, "--cluster", "h100", "--stage", "4"}), 2);
    EXPECT_TRUE(says("--stage 4: the run has 3 stages")) << err;
    EXPECT_EQ(run_words("rehearse", {config, "--vary", "parallel.zero=0,1"}), 2);
    EXPECT_EQ(run_words("rehearse", {config, "--stage", "1", "--layout"}), 0) << err;
    EXPECT_EQ(run_words("plan", {config, "--cluster", "h100", "--ranks", "2"}), 0) << err;
    EXPECT_TRUE(says("planned for stage 2, which has the longest sequences")) << out;
    EXPECT_EQ(run_words("plan", {config, "--cluster", "h100", "--ranks", "2", "--stage", "1"}), 0) << err;
    EXPECT_FALSE(says("planned for")) << out;
}

TEST_F(StagesCommand, ConfigExplainsThem) {
    EXPECT_EQ(run_words("config", {"stage"}), 0);
    EXPECT_TRUE(says("train.seq_len") && says("until") && says("[[stage]]")) << out;
    EXPECT_EQ(run_words("config", {"train.seq_len"}), 0);
    EXPECT_TRUE(says("a [[stage]] may set it")) << out;
    EXPECT_EQ(run_words("config", {"train.steps"}), 0);
    EXPECT_FALSE(says("a [[stage]] may set it")) << out;
    // A mistake is named with its stage.
    EXPECT_EQ(run_words("rehearse", {config, "--ranks", "3"}), 2);
    EXPECT_TRUE(says("[train] global_batch = 4: must be a multiple")) << err;
    EXPECT_EQ(run_words("rehearse", {config, "--set", "model.max_positions=32"}), 2);
    EXPECT_TRUE(says("stage 2: [train] seq_len = 64: must be at most [model] max_positions = 32")) << err;
}

}  // namespace
}  // namespace tutti::cli
