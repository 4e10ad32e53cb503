// Presets and parameter counts against published figures.
#include <gtest/gtest.h>

#include "tutti/base/error.h"
#include "tutti/spec/model_spec.h"
#include "tutti/spec/validate.h"

namespace tutti::spec {
namespace {

int64_t count(const std::string& name) { return parameter_count(preset(name)); }

TEST(Presets, ParameterCountsArePublished) {
    EXPECT_EQ(count("gpt2-124m"), 124'439'808);  // from the shapes of the published files
    EXPECT_EQ(count("gpt2-xl"), 1'557'611'200);
    EXPECT_EQ(count("llama3-8b"), 8'030'261'248);
    EXPECT_EQ(count("llama3.2-1b"), 1'235'814'400);
    EXPECT_EQ(count("llama3-70b"), 70'553'706'496);  // model cards of Llama 3.1
    EXPECT_EQ(count("llama3-405b"), 405'853'388'800);
    EXPECT_EQ(count("llama2-7b"), 6'738'415'616);  // model cards: what `num_parameters` of the published files says
    EXPECT_EQ(count("llama3.2-3b"), 3'212'749'824);
    EXPECT_EQ(count("mistral-7b"), 7'241'732'096);
    EXPECT_EQ(count("qwen2.5-0.5b"), 494'032'768);
    EXPECT_EQ(count("qwen2.5-1.5b"), 1'543'714'304);
    EXPECT_EQ(count("qwen2.5-7b"), 7'615'616'512);
    EXPECT_EQ(count("qwen3-0.6b"), 596'049'920);
    EXPECT_EQ(count("qwen3-4b"), 4'022'468'096);
    EXPECT_EQ(count("qwen3-8b"), 8'190'735'360);
    EXPECT_EQ(count("mixtral-8x7b"), 46'702'792'704);
    EXPECT_EQ(count("qwen3-30b-a3b"), 30'532'122'624);
    EXPECT_EQ(count("lfm2-8b-a1b"), 8'339'929'856);
    EXPECT_EQ(count("lfm2-24b-a2b"), 23'787'038'336 - 38 * 64);  // the published number counts the biases of experts
    EXPECT_NEAR(static_cast<double>(active_parameter_count(preset("lfm2-8b-a1b"))), 1557.7e6, 0.1e6);
    EXPECT_EQ(active_parameter_count(preset("mixtral-8x7b")), 12'879'925'248);
    EXPECT_EQ(active_parameter_count(preset("qwen3-30b-a3b")), 3'353'032'704);
    EXPECT_EQ(active_parameter_count(preset("llama2-7b")), count("llama2-7b"));
    EXPECT_EQ(count("llama-110m"), 109'529'856);  // llama2.c's stories110M has these sizes, tied
    EXPECT_EQ(count("lfm2-350m"), 354'483'968);   // what `num_parameters` of the published files says
    EXPECT_EQ(count("lfm2-700m"), 742'489'344);
    EXPECT_EQ(count("lfm2-1.2b"), 1'170'340'608);
    EXPECT_EQ(count("mlp-8192"), 8ll * 8192 * 8192);
}

TEST(Presets, SmallOnesAreAsLargeAsTheirNames) {
    EXPECT_NEAR(static_cast<double>(count("llama-tiny")), 1e6, 0.05e6);
    EXPECT_NEAR(static_cast<double>(count("lfm2-tiny")), 1e6, 0.05e6);
    EXPECT_NEAR(static_cast<double>(count("llama-5m")), 5e6, 0.25e6);
    EXPECT_NEAR(static_cast<double>(count("llama-20m")), 20e6, 1e6);
}

// Tensor by tensor, from the shapes of the Hugging Face files: another path than the closed formula.
TEST(ParameterCount, IsTheSumOfTheTensors) {
    ModelSpec m = preset("llama3-8b");
    m.layers = 1;
    const int64_t block = 4096 + 4096 * 4096 + 1024 * 4096 + 1024 * 4096 + 4096 * 4096  // norm, q, k, v, o
                          + 4096 + 14336 * 4096 + 14336 * 4096 + 4096 * 14336;          // norm, gate, up, down
    EXPECT_EQ(parameter_count(m), 128256ll * 4096 + block + 4096 + 128256ll * 4096);
    m.tie_embeddings = true;
    EXPECT_EQ(parameter_count(m), 128256ll * 4096 + block + 4096);

    ModelSpec l = preset("lfm2-350m");  // a convolution and an attention layer
    l.layers = 2;
    l.conv_layers = "0";
    l.conv_bias = true;
    const int64_t convolution = 3072 * 1024 + 3072 + 1024 * 1 * 3 + 1024 + 1024 * 1024 + 1024;
    const int64_t attention = 1024 * 1024 + 512 * 1024 + 512 * 1024 + 1024 * 1024 + 64 + 64;
    const int64_t rest = 1024 + 1024 + 3 * 4608 * 1024;
    EXPECT_EQ(parameter_count(l), 65536 * 1024 + convolution + attention + 2 * rest + 1024);

    ModelSpec g = preset("gpt2-124m");
    g.layers = 2;
    g.ffn = 1000;
    const int64_t gpt2_block = 768 + 768 + 768 * 2304 + 2304 + 768 * 768 + 768 + 768 + 768  //
                               + 768 * 1000 + 1000 + 1000 * 768 + 768;
    EXPECT_EQ(parameter_count(g), 50257 * 768 + 1024 * 768 + 2 * gpt2_block + 768 + 768);
}

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
