// Several texts at once: each as if alone, with any number of them in a forward; how they end.
#include "tutti/infer/generate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "tutti/base/testing/scratch.h"
#include "tutti/base/to_size.h"
#include "tutti/infer/stored_model.h"

namespace tutti::infer {
namespace {

using Texts = std::vector<std::vector<int32_t>>;

class GenerateTest : public ::testing::TestWithParam<const char*> {
  protected:
    GenerateTest() : device_(make_cpu_device(1)), ctx_{*device_, kernels::cpu_table(kernels::best_isa())} {
        spec::ModelSpec s = spec::preset(std::string(GetParam()) == "gpt2" ? "gpt2-124m" : "llama-tiny");
        s.vocab = 50;
        s.width = 32;
        s.layers = 2;
        s.heads = s.kv_heads = 2;
        s.head_dim = 16;
        s.ffn = 48;
        s.init_std = 0.4;
        if (std::string(GetParam()) == "mistral") s.window = 5;
        if (std::string(GetParam()) == "lfm2") {
            s.family = spec::Family::lfm2;
            s.head_norm = true;
            s.conv_layers = "0";
            s.conv_kernel = 3;
        }
        model_ = std::make_unique<models::Model>(models::make_model(ctx_, s, kPositions));
        models::materialize(ctx_, *model_, DType::f32, 9, true);
    }
    Texts run(const Texts& prompts, SamplingOptions options, size_t batch, std::vector<Ended>* ended = nullptr) {
        Texts made(prompts.size());
        const auto emit = [&](size_t prompt, int32_t token) {
            made[prompt].push_back(token);
            return true;
        };
        options.max_positions = kPositions;
        options.batch = batch;
        const auto ends = generate(ctx_, *model_, prompts, options, emit);
        if (ended) *ended = ends;
        return made;
    }

    static constexpr int64_t kPositions = 24;
    const Texts prompts_ = {{1, 2, 3, 4, 5, 6, 7}, {9}, {1, 2, 3}, {4, 4}, {19, 0, 11, 12}};
    std::unique_ptr<Device> device_;
    ops::Context ctx_;
    std::unique_ptr<models::Model> model_;
};

// 30 new tokens: past the 24 positions, where a text loses the older half of its context.
TEST_P(GenerateTest, TogetherAsAlone) {
    for (const SamplingOptions& options :
         {SamplingOptions{.max_tokens = 30, .temperature = 0}, SamplingOptions{.max_tokens = 30, .seed = 4}}) {
        Texts alone;
        for (const auto& prompt : prompts_) alone.push_back(run({prompt}, options, 1)[0]);
        for (const size_t batch : {1, 2, 3, 16}) EXPECT_EQ(run(prompts_, options, batch), alone) << batch;
        for (const auto& text : alone) EXPECT_EQ(text.size(), 30u);
    }
}

TEST_P(GenerateTest, EndsAtStopTokensWhenToldToAndAtTheLength) {
    SamplingOptions options{.max_tokens = 12, .temperature = 1, .seed = 2};
    const Texts whole = run(prompts_, options, 16);
    options.stop_tokens = {whole[0][4], whole[2][7]};
    std::vector<Ended> ended;
    const Texts cut = run(prompts_, options, 2, &ended);
    for (size_t i = 0; i < cut.size(); ++i) {
        std::vector<int32_t> expected = whole[i];
        for (size_t n = 0; n < expected.size(); ++n)
            if (expected[n] == options.stop_tokens[0] || expected[n] == options.stop_tokens[1]) expected.resize(n);
        EXPECT_EQ(cut[i], expected);
        EXPECT_EQ(ended[i], expected.size() == 12 ? Ended::length : Ended::stop_token);
    }
    EXPECT_LE(cut[0].size(), 4u);

    std::map<size_t, int> counts;
    const auto ends = generate(ctx_, *model_, prompts_, {.max_tokens = 9, .max_positions = kPositions},
                               [&](size_t i, int32_t) { return ++counts[i] < static_cast<int>(i) + 1; });
    for (size_t i = 0; i < prompts_.size(); ++i) {
        EXPECT_EQ(counts[i], static_cast<int>(i) + 1);
        EXPECT_EQ(ends[i], Ended::stopped);
    }
}

// The training forward with one target at a time, alone and beside other texts, whose losses have a place of their own.
TEST_P(GenerateTest, LogProbabilitiesAreTheLossesOfTheTrainingForwardToTheBit) {
    const std::vector<int32_t> text = {1, 2, 3, 4, 5, 6, 7, 19, 0, 11, 12, 49, 49, 8};
    const std::vector<float> found = log_probabilities(ctx_, *model_, text);
    ASSERT_EQ(found.size(), text.size() - 1);
    const std::vector<int32_t> tokens(text.begin(), text.end() - 1);
    for (size_t i = 0; i < found.size(); ++i) {
        std::vector<int32_t> targets(tokens.size(), -100);
        targets[i] = text[i + 1];
        autograd::Tape tape(ctx_, true);  // as in a step: the head computes gradients too
        const nn::Batch batch = nn::make_batch(*device_, nn::BatchRows{tokens, targets, {}}, 1, 0);
        const auto losses = model_->forward(tape, batch).value.to_host<float>();
        EXPECT_EQ(-losses[i], found[i]) << i;
        for (size_t other = 0; other < losses.size(); ++other) EXPECT_TRUE(other == i || losses[other] == 0) << other;
    }
    // A probability: all tokens of the vocabulary in the place of the last one sum to 1.
    double sum = 0;
    for (int32_t token = 0; token < 50; ++token) {
        std::vector<int32_t> other = text;
        other.back() = token;
        sum += std::exp(static_cast<double>(log_probabilities(ctx_, *model_, other).back()));
    }
    EXPECT_NEAR(sum, 1, 1e-5);
    // The greedy token is the most likely one.
    const Texts greedy = run({text}, {.max_tokens = 1, .temperature = 0}, 1);
    std::vector<int32_t> longer = text;
    longer.push_back(greedy[0][0]);
    const float best = log_probabilities(ctx_, *model_, longer).back();
    for (longer.back() = 0; longer.back() < 50; ++longer.back())
        EXPECT_LE(log_probabilities(ctx_, *model_, longer).back(), best + 1e-5F);
    EXPECT_THROW(log_probabilities(ctx_, *model_, {1}), UsageError);
}

// Texts that begin like the one before, in part or wholly, and texts that do not.
TEST_P(GenerateTest, AKeptTextChangesNoToken) {
    KeptText kept;
    SamplingOptions options{.max_tokens = 4, .temperature = 1.1, .max_positions = kPositions};
    std::vector<int32_t> prompt = {1, 2, 3, 4, 5};
    int64_t reused = 0;
    for (int turn = 0; turn < 8; ++turn) {
        std::vector<int32_t> made;
        options.stop_tokens = turn % 3 == 2 ? std::vector<int32_t>{7, 8, 9, 10} : std::vector<int32_t>{};
        generate(
            ctx_, *model_, {prompt}, options,
            [&](size_t, int32_t token) {
                made.push_back(token);
                return made.size() < 4 - to_size(turn % 2);
            },
            {}, &kept);
        EXPECT_EQ(kept.tokens.size(), to_size(kept.cache->length));
        if (turn % 2 == 1 && made.size() == 3) made.pop_back();  // emit() refused the third
        std::vector<int32_t> alone;
        generate(ctx_, *model_, {prompt}, options, [&](size_t, int32_t token) {
            alone.push_back(token);
            return alone.size() < 4;
        });
        EXPECT_EQ(made, std::vector<int32_t>(alone.begin(), alone.begin() + static_cast<std::ptrdiff_t>(made.size())))
            << turn;
        reused += kept.reused;
        EXPECT_LT(kept.reused, static_cast<int64_t>(prompt.size()));
        if (turn == 4) prompt = {1, 2, 3};  // as /reset
        if (turn == 5) prompt = {1, 2, 9, 9};
        if (turn < 4) prompt.insert(prompt.end(), made.begin(), made.end());
        prompt.push_back(turn);
    }
    EXPECT_GT(reused, 20);
    EXPECT_THROW(generate(
                     ctx_, *model_, {{1}, {2}}, options, [](size_t, int32_t) { return true; }, {}, &kept),
                 Error);
}

TEST_P(GenerateTest, DrawsOnlyFromTheTokenizersIds) {
    for (const auto& text : run(prompts_, {.max_tokens = 20, .temperature = 5, .vocab = 20}, 16))
        for (const int32_t token : text) EXPECT_LT(token, 20);
}

TEST_P(GenerateTest, RefusesEmptyPromptsAndStrangeTokens) {
    EXPECT_THROW(run({{}}, {}, 1), UsageError);
    EXPECT_THROW(run({std::vector<int32_t>(kPositions + 1, 3)}, {}, 1), UsageError);
    EXPECT_EQ(run({std::vector<int32_t>(kPositions, 3)}, {.max_tokens = 2}, 1)[0].size(), 2u);
    EXPECT_THROW(run({{1}, {50}}, {}, 1), UsageError);
    EXPECT_THROW(run({{1}}, {.temperature = NAN}, 1), UsageError);
    EXPECT_THROW(run({{1}}, {.top_p = 0}, 1), UsageError);
    EXPECT_THROW(run({{-1}}, {}, 1), UsageError);
    EXPECT_EQ(run({}, {}, 1), Texts{});
}

TEST_P(GenerateTest, RefusesOptionsOutOfRange) {
    constexpr int64_t kLeast = std::numeric_limits<int64_t>::min(), kMost = std::numeric_limits<int64_t>::max();
    const std::pair<const char*, SamplingOptions> wrong[] = {{"max_tokens", {.max_tokens = 0}},
                                                             {"max_tokens", {.max_tokens = -1}},
                                                             {"max_tokens", {.max_tokens = kLeast}},
                                                             {"temperature", {.temperature = -0.1}},
                                                             {"temperature", {.temperature = INFINITY}},
                                                             {"top_k", {.top_k = -1}},
                                                             {"top_p", {.top_p = 1.01}},
                                                             {"top_p", {.top_p = NAN}},
                                                             {"vocab", {.vocab = -1}},
                                                             {"positions", {.max_positions = 1}},
                                                             {"positions", {.max_positions = kLeast}},
                                                             {"batch", {.batch = 0}}};
    for (const auto& [name, given] : wrong) {
        SamplingOptions options = given;
        if (options.max_positions == 0) options.max_positions = kPositions;
        try {
            generate(ctx_, *model_, prompts_, options, [](size_t, int32_t) { return true; });
            ADD_FAILURE() << name;
        } catch (const UsageError& error) {
            EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
        }
    }
    int64_t made = 0;  // more tokens than any text has room for
    generate(ctx_, *model_, {{1}}, {.max_tokens = kMost, .max_positions = kPositions},
             [&](size_t, int32_t) { return ++made < 2 * kPositions; });
    EXPECT_EQ(made, 2 * kPositions);
}

INSTANTIATE_TEST_SUITE_P(Families, GenerateTest, ::testing::Values("gpt2", "llama", "mistral", "lfm2"),
                         [](const auto& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace tutti::infer
