#include "tutti/spec/hf/generation.h"

#include <gtest/gtest.h>

#include "tutti/base/error.h"
#include "tutti/base/json.h"

namespace tutti::spec {
namespace {

TEST(HfGeneration, EosTokens) {
    const auto eos = [](const std::string& text) { return eos_tokens(text, "g.json"); };
    EXPECT_EQ(eos(R"({"eos_token_id":5})"), std::vector<int32_t>{5});
    EXPECT_EQ(eos(R"({"eos_token_id":[5,6]})"), (std::vector<int32_t>{5, 6}));
    EXPECT_EQ(eos(R"({"eos_token_id":null})"), std::vector<int32_t>{});
    EXPECT_EQ(eos("{}"), std::vector<int32_t>{});
    EXPECT_THROW(eos(R"({"eos_token_id":"x"})"), DataError);
    EXPECT_THROW(eos(R"({"eos_token_id":-1})"), DataError);
}

TEST(HfGeneration, TokensAreAddedToThoseOfTheText) {
    const auto with = [](const std::string& text, const HfTokens& tokens) {
        return Json::parse(hf_json_with_tokens(text, "c.json", tokens)).dump();
    };
    EXPECT_EQ(with("{}", {.bos = 1, .pad = 3, .eos = {2}}), R"({"eos_token_id":2,"bos_token_id":1,"pad_token_id":3})");
    EXPECT_EQ(with(R"({"eos_token_id":5,"bos_token_id":9})", {.bos = 1, .pad = {}, .eos = {2, 5}}),
              R"({"eos_token_id":[5,2],"bos_token_id":9})");
    const std::string text = "{ \"eos_token_id\" : [5, 2] }";
    EXPECT_EQ(hf_json_with_tokens(text, "c.json", {.eos = {2}}), text);  // to the byte
}

// Options with which generate() of transformers 5.24 returns other texts, and values without effect.
TEST(HfGeneration, UnsupportedOptions) {
    const auto options = [](const std::string& text) { return unsupported_generation_options(text, "g.json"); };
    EXPECT_THROW(options("{"), DataError);
    EXPECT_EQ(options(R"({"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [1, 2],
                        "pad_token_id": 0, "max_length": 4096, "transformers_version": "5.24.0"})"),
              "");
    EXPECT_EQ(options(R"({"repetition_penalty": 1.0, "num_beams": 1, "no_repeat_ngram_size": 0, "bad_words_ids": null,
                        "suppress_tokens": [], "min_p": null, "forced_eos_token_id": null})"),
              "");
    EXPECT_EQ(options(R"({"repetition_penalty": 1.05, "num_beams": 4, "suppress_tokens": [7],
                        "forced_bos_token_id": 0})"),
              "repetition_penalty = 1.05, num_beams = 4, suppress_tokens = [7], forced_bos_token_id = 0");
}

}  // namespace
}  // namespace tutti::spec
