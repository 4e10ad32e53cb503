// The identity of a run: texts of older versions, every key by itself, and what a refusal says.
#include "tutti/spec/identity.h"

#include <gtest/gtest.h>

#include <sstream>

#include "tutti/base/error.h"
#include "tutti/spec/fields.h"
#include "tutti/spec/toml.h"

namespace tutti::spec {
namespace {

RunSpec run_of(const std::vector<std::string>& set) { return parse_text("", "test", set); }

std::string problems_of(const RunSpec& run, const std::string& identity) {
    return joined(identity_problems(run, identity), "\n");
}

// Sets a legal value that `value` is not.
void change(int64_t& value) { ++value; }
void change(double& value) { value = value / 2 + 0.25; }
void change(bool& value) { value = !value; }
void change(std::string& value) { value += "x"; }
void change(std::vector<std::string>& value) { value.push_back("x"); }
void change(std::vector<ParameterGroup>& value) { value.push_back({"norm|bias", 0, 0.5}); }
void change(std::vector<StageSpec>& value) { value.push_back({0, {{"train.seq_len", int64_t{8}}}}); }
void change(Family& value) { value = value == Family::gpt2 ? Family::llama : Family::gpt2; }

// What version 1042c42, before mixtures of experts, wrote into checkpoints of llama-tiny with its default run.
constexpr const char* kBeforeMixtures = R"(model.family = "llama"
model.vocab = 256
model.width = 128
model.layers = 4
model.heads = 4
model.kv_heads = 4
model.head_dim = 32
model.ffn = 448
model.max_positions = 1024
model.norm_eps = 1e-5
model.rope_theta = 10000.0
model.rope_scaling.factor = 0.0
model.rope_scaling.low_freq_factor = 1.0
model.rope_scaling.high_freq_factor = 4.0
model.rope_scaling.original_max_positions = 8192
model.tie_embeddings = true
model.dropout = 0.0
model.init_std = 0.02
train.seq_len = 256
train.global_batch = 32
train.seed = 1234
optimizer.name = "adamw"
precision.compute = "bf16"
)";

TEST(Identity, ACheckpointFromBeforeMixturesIsOfTheSameRun) {
    EXPECT_EQ(problems_of(run_of({}), kBeforeMixtures), "");
    EXPECT_EQ(identity_of(run_of({})), kBeforeMixtures);  // keys that came later are not stated at their defaults
    EXPECT_EQ(problems_of(run_of({"model.moe.experts=8", "model.moe.top_k=2"}), kBeforeMixtures),
              "model.moe.experts = 8, in the checkpoint 0\nmodel.moe.top_k = 2, in the checkpoint 0");
}

// c490f67 stated the keys of mixtures in every identity.
TEST(Identity, KeysStatedAtTheirDefaultsAreEqualToKeysLeftOut) {
    std::string text = kBeforeMixtures;
    text += "model.moe.experts = 0\nmodel.moe.score = \"softmax\"\nmodel.moe.scale = 1.0\nmodel.qkv_bias = false\n";
    EXPECT_EQ(problems_of(run_of({}), text), "");
    EXPECT_EQ(problems_of(run_of({"model.moe.score=sigmoid"}), text),
              "model.moe.score = \"sigmoid\", in the checkpoint \"softmax\"");
}

TEST(Identity, ValuesAreComparedAndNotTheirTexts) {
    const RunSpec run = run_of({"model.rope_theta=1e6", "data.eod=\\n"});
    std::istringstream lines(identity_of(run));
    std::string other = "# in reverse, and spelled otherwise\n";
    for (std::string line; std::getline(lines, line);) other.insert(other.find('\n') + 1, line + "  # a comment\n");
    for (const auto& [from, to] : {std::pair("1e6", "1_000_000.0"),
                                   {"\"bf16\"", "'bf16'"},
                                   {"1234", "0x4d2"},
                                   {" = 1e-5", "=0.00001"},
                                   {"\"\\\\n\"", "'\\n'"}}) {
        ASSERT_NE(other.find(from), std::string::npos) << from << other;
        other.replace(other.find(from), std::string_view(from).size(), to);
    }
    EXPECT_EQ(problems_of(run, other), "");
}

// Every key by itself: it is in the identity as its field says, whatever its name, and in no other way.
TEST(Identity, IsAPropertyOfEachKey) {
    const RunSpec usual;
    int always = 0, later = 0;
    for_each_field(usual, [&](const Field& field, const auto&) {
        const std::string path = field.path();
        RunSpec other;
        for_each_field(other, [&](const Field& same, auto& value) {
            if (same.path() == path) change(value);
        });
        const bool stated = identity_of(usual).find(path + " = ") != std::string::npos;
        EXPECT_EQ(stated, field.identity == Identity::always) << path;
        for (const auto& [run, identity] : {std::pair(other, identity_of(usual)), {usual, identity_of(other)}}) {
            const std::vector<std::string> problems = identity_problems(run, identity);
            EXPECT_EQ(problems.size(), field.identity == Identity::never ? 0u : 1u) << path;
            if (problems.empty()) continue;
            EXPECT_TRUE(problems[0].starts_with(path + " = ")) << problems[0];
            EXPECT_NE(problems[0].find(", in the checkpoint "), std::string::npos) << problems[0];
        }
        EXPECT_EQ(problems_of(other, identity_of(other)), "") << path;
        always += field.identity == Identity::always ? 1 : 0;
        later += field.identity == Identity::unless_default ? 1 : 0;
    });
    EXPECT_EQ(always, 23);  // no later version can add one: older checkpoints do not state it
    EXPECT_GE(later, 32);
}

// Same names in other sections: [checkpoint] and [log] every, the name and the seed of what a later version may bring.
TEST(Identity, ANameInAnotherSectionIsAnotherKey) {
    std::string text = identity_of({});
    EXPECT_EQ(text.find("every"), std::string::npos);
    EXPECT_EQ(problems_of({}, text + "checkpoint.every = 7\n"), "");
    EXPECT_EQ(problems_of({}, text + "tracking.name = \"adamw\"\n"),
              "tracking.name = \"adamw\" in the checkpoint, a key that this version does not have");
}

TEST(Identity, AnIdentityWithoutAKeyThatAllVersionsStateIsRefused) {
    std::string text = identity_of({});
    const size_t at = text.find("train.seed");
    text.erase(at, text.find('\n', at) + 1 - at);
    EXPECT_EQ(problems_of({}, text), "train.seed = 1234, which the checkpoint does not state");
    EXPECT_THROW(identity_problems({}, "model.width 128"), UsageError);
}

TEST(ChangedKeys, OfAConfigOfAnotherVersion) {
    const RunSpec before = run_of({"train.steps=10", "optimizer.lr=3e-3"}), now = run_of({"train.steps=20"});
    EXPECT_EQ(changed_keys(now, to_toml(before)), "optimizer.lr = 3e-4 (was 0.003), train.steps = 20 (was 10)");
    EXPECT_EQ(changed_keys(now, to_toml(now)), "");
    EXPECT_EQ(changed_keys(now, "[train]\nsteps = 20\nformer = 1\n[gone]\nx = 2\n"), "");
    EXPECT_EQ(changed_keys(now, ""), "");
}

}  // namespace
}  // namespace tutti::spec
