// Presets: their families and options, valid runs, unknown names.
#include <gtest/gtest.h>

#include <set>

#include "tutti/base/error.h"
#include "tutti/spec/hf/config.h"
#include "tutti/spec/model_spec.h"
#include "tutti/spec/validate.h"
#include "tutti/spec/variants.h"

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
        EXPECT_EQ(error.what(),
                  concat("unknown preset \"llama3-9b\"; the nearest is \"llama3-8b\" of ", joined(preset_names())));
    }
}

// A row of spec/variants.h has what its class of transformers always has, and its config.json reads back to it.
TEST(Presets, OfEachVariantAreWrittenAndReadBack) {
    std::set<std::string> seen;
    for (const std::string& name : preset_names()) {
        ModelSpec m = preset(name);
        if (m.variant == kAutoVariant) continue;
        seen.insert(m.variant);
        m.preset.clear();
        EXPECT_EQ(model_from_hf_config(to_hf_config(m, DType::bf16), "config.json"), m) << to_hf_config(m, DType::bf16);
    }
    for (const std::string& variant : variant_names()) EXPECT_TRUE(seen.contains(variant)) << variant;
}

}  // namespace
}  // namespace tutti::spec
