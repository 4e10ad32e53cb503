// Presets: their families and options, valid runs, unknown names.
#include <gtest/gtest.h>

#include "tutti/base/error.h"
#include "tutti/spec/model_spec.h"
#include "tutti/spec/validate.h"

namespace tutti::spec {
namespace {

TEST(Presets, FamiliesAndTheirSpecials) {
    EXPECT_EQ(preset("llama-tiny"), ModelSpec{});  // the defaults of ModelSpec are this preset
    EXPECT_EQ(preset("llama3-8b").rope_scaling, (RopeScaling{.type = "llama3", .factor = 8}));
    EXPECT_EQ(preset("llama3.2-1b").rope_scaling, (RopeScaling{.type = "llama3", .factor = 32}));
    EXPECT_TRUE(preset("llama3.2-1b").tie_embeddings);
    EXPECT_FALSE(preset("llama3-8b").tie_embeddings);
    EXPECT_EQ(preset("llama3-405b").rope_theta, 500000.0);
    EXPECT_EQ(preset("gpt2-xl").family, Family::gpt2);
    EXPECT_EQ(preset("mlp-8192").vocab, 0);
    EXPECT_EQ(preset("mistral-7b").window, 4096);
    EXPECT_TRUE(preset("qwen2.5-7b").qkv_bias);
    EXPECT_FALSE(preset("qwen2.5-7b").output_bias);
    EXPECT_TRUE(preset("qwen3-8b").head_norm);
    EXPECT_EQ(preset("lfm2-1.2b").conv_layers, "0-1,3-4,6-7,9,11,13,15");
    EXPECT_EQ(preset_names().size(), 33u);
}

TEST(Presets, AreValidRuns) {
    for (const std::string& name : preset_names()) {
        RunSpec run;
        run.model = preset(name);
        EXPECT_EQ(run.model.preset, name);
        if (run.model.family != Family::mlp) run.data.train = {"a.txt"};
        EXPECT_NO_THROW(validate(run, 1)) << name;
    }
}

TEST(Presets, UnknownNameGetsTheNearest) {
    try {
        preset("llama3-9b");
        FAIL() << "no error";
    } catch (const UsageError& error) {
        EXPECT_STREQ(error.what(),
                     "unknown preset \"llama3-9b\"; the nearest is \"llama3-8b\" of llama-tiny, llama-5m, llama-20m, "
                     "llama-110m, gpt2-124m, gpt2-xl, llama2-7b, llama3.2-1b, llama3.2-3b, llama3-8b, llama3-70b, "
                     "llama3-405b, mistral-7b, qwen2.5-0.5b, qwen2.5-1.5b, qwen2.5-7b, qwen3-0.6b, qwen3-4b, qwen3-8b, "
                     "lfm2-tiny, lfm2-350m, lfm2-700m, lfm2-1.2b, moe-tiny, mixtral-8x7b, mixtral-8x22b, "
                     "qwen1.5-moe-a2.7b, qwen2-57b-a14b, qwen3-30b-a3b, qwen3-235b-a22b, lfm2-8b-a1b, lfm2-24b-a2b, "
                     "mlp-8192");
    }
}

}  // namespace
}  // namespace tutti::spec
