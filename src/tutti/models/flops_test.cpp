// Parameters and FLOPs against figures and formulas that others published and against values worked out by hand.
#include "tutti/models/flops.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/spec/layers.h"

namespace tutti::models {
namespace {

// N_matmul of forward_flops().
int64_t matmul_parameters(const spec::ModelSpec& m) {
    return static_cast<int64_t>(forward_flops(outline(m), 1).matmul / 2);
}
TokenFlops flops(const spec::ModelSpec& m, int64_t seq_len) { return model_flops(outline(m), seq_len); }
TokenFlops flops(const spec::ModelSpec& m, int64_t seq_len, const char* recompute) {
    return hardware_flops(outline(m), seq_len, recompute);
}

int64_t count(const std::string& name) { return parameter_count(outline(spec::preset(name))); }

TEST(ParameterCount, OfThePresetsIsPublished) {
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
    EXPECT_NEAR(static_cast<double>(active_parameter_count(outline(spec::preset("lfm2-8b-a1b")))), 1557.7e6, 0.1e6);
    EXPECT_EQ(active_parameter_count(outline(spec::preset("mixtral-8x7b"))), 12'879'925'248);
    EXPECT_EQ(active_parameter_count(outline(spec::preset("qwen3-30b-a3b"))), 3'353'032'704);
    EXPECT_EQ(active_parameter_count(outline(spec::preset("llama2-7b"))), count("llama2-7b"));
    EXPECT_EQ(count("llama-110m"), 109'529'856);  // llama2.c's stories110M has these sizes, tied
    EXPECT_EQ(count("lfm2-350m"), 354'483'968);   // what `num_parameters` of the published files says
    EXPECT_EQ(count("lfm2-700m"), 742'489'344);
    EXPECT_EQ(count("lfm2-1.2b"), 1'170'340'608);
    EXPECT_EQ(count("mlp-8192"), 8ll * 8192 * 8192);
}

// Counted by transformers from the published configs, without towers for images.
TEST(ParameterCount, OfVariantsIsPublished) {
    const std::pair<const char*, int64_t> kPublished[] = {{"gemma-2b", 2'506'172'416},
                                                          {"gemma-7b", 8'537'680'896},
                                                          {"gemma2-2b", 2'614'341'888},
                                                          {"gemma2-9b", 9'241'705'984},
                                                          {"gemma2-27b", 27'227'128'320},
                                                          {"gemma3-270m", 268'098'176},
                                                          {"gemma3-1b", 999'885'952},
                                                          {"gemma3-4b", 3'880'263'168},
                                                          {"gemma3-27b", 27'009'346'304},
                                                          {"phi3-mini", 3'821'079'552},
                                                          {"phi4", 14'659'507'200},
                                                          {"phi4-mini", 3'836'021'760},
                                                          {"olmo2-1b", 1'484'916'736},
                                                          {"olmo2-7b", 7'298'617'344},
                                                          {"olmo2-32b", 32'234'279'936},
                                                          {"olmo3-7b", 7'298'011'136},
                                                          {"olmo3-32b", 32'233'522'176},
                                                          {"smollm3-3b", 3'075'098'624},
                                                          {"granite3.1-2b", 2'533'531'648},
                                                          {"granite3.1-8b", 8'170'848'256},
                                                          {"glm4-9b-chat", 9'399'951'360},
                                                          {"glm4-9b-0414", 9'400'279'040},
                                                          {"glm4-32b-0414", 32'566'487'552},
                                                          {"mistral-small-3.1", 23'572'403'200},
                                                          {"ministral3-3b", 3'429'006'336},
                                                          {"ministral3-8b", 8'489'553'920},
                                                          {"ministral3-14b", 13'506'073'600},
                                                          {"seed-oss-36b", 36'151'104'512},
                                                          {"exaone4-32b", 32'003'216'384},
                                                          {"exaone4-1.2b", 1'279'391'488},
                                                          {"deepseek-v2-lite", 15'706'484'224},
                                                          {"deepseek-v2", 235'741'434'880},
                                                          {"deepseek-v3", 671'026'404'352},
                                                          {"moonlight-16b-a3b", 15'960'108'544},
                                                          {"kimi-k2", 1'026'408'209'408},
                                                          {"glm4.7-flash", 29'943'390'976},
                                                          {"gpt-oss-20b", 20'914'757'184},
                                                          {"gpt-oss-120b", 116'829'156'672},
                                                          {"granite4-h-micro", 3'191'396'096},
                                                          {"granite4-h-tiny", 6'939'037'248},
                                                          {"granite4-h-small", 32'207'337'984},
                                                          {"nemotron-h-8b", 8'100'852'736},
                                                          {"nemotron3-nano-30b", 31'577'937'344},
                                                          {"falcon-h1-0.5b", 521'411'104},
                                                          {"mamba-codestral-7b", 7'285'403'648},
                                                          {"qwen3-next-80b-a3b", 79'674'391'296},
                                                          {"qwen3.5-4b", 4'205'751'296},
                                                          {"qwen3.5-9b", 8'953'803'264},
                                                          {"qwen3.5-27b", 26'895'998'464},
                                                          {"qwen3.5-35b-a3b", 34'660'610'688}};
    for (const auto& [name, parameters] : kPublished) EXPECT_EQ(count(name), parameters) << name;
}

// The same, with the experts that a token passes; the cards round these to 2.4B (without the embedding), 21B, 37B, 3B,
// 32B, 3B, 3.6B, 5.1B, 3B and 3B.
TEST(ParameterCount, ActiveOnesOfVariantsArePublished) {
    const std::pair<const char*, int64_t> kPublished[] = {
        {"deepseek-v2-lite", 2'661'150'208},   {"deepseek-v2", 21'375'800'320},
        {"deepseek-v3", 37'552'282'624},       {"moonlight-16b-a3b", 2'914'774'528},
        {"kimi-k2", 32'861'477'888},           {"glm4.7-flash", 3'896'763'136},
        {"gpt-oss-20b", 4'187'440'704},        {"gpt-oss-120b", 5'711'982'912},
        {"qwen3-next-80b-a3b", 3'874'929'408}, {"qwen3.5-35b-a3b", 3'454'988'928},
        {"nemotron3-nano-30b", 3'580'073'408}};
    for (const auto& [name, parameters] : kPublished)
        EXPECT_EQ(active_parameter_count(outline(spec::preset(name))), parameters) << name;
}

TEST(ParameterCount, SmallPresetsAreAsLargeAsTheirNames) {
    EXPECT_NEAR(static_cast<double>(count("llama-tiny")), 1e6, 0.05e6);
    EXPECT_NEAR(static_cast<double>(count("lfm2-tiny")), 1e6, 0.05e6);
    EXPECT_NEAR(static_cast<double>(count("llama-5m")), 5e6, 0.25e6);
    EXPECT_NEAR(static_cast<double>(count("llama-20m")), 20e6, 1e6);
}

// 984192 -> "984,192"
std::string with_commas(int64_t n) {
    std::string digits = std::to_string(n);
    for (int64_t at = static_cast<int64_t>(digits.size()) - 3; at > 0; at -= 3) digits.insert(to_size(at), 1, ',');
    return digits;
}

TEST(ParameterCount, OfThePresetsStandsInTheDocument) {
    std::stringstream text;
    text << std::ifstream(std::filesystem::path(__FILE__).parent_path() / "../../../docs/config.md").rdbuf();
    const std::string document = text.str();
    for (const std::string& name : spec::preset_names()) {
        const std::string row = concat("| `", name, "` | ", with_commas(count(name)), " |");
        EXPECT_NE(document.find(row), std::string::npos) << row;
    }
}

// Tensor by tensor, from the shapes of the Hugging Face files.
TEST(ParameterCount, IsTheSumOfTheTensors) {
    spec::ModelSpec m = spec::preset("llama3-8b");
    m.layers = 1;
    const int64_t block = 4096 + 4096 * 4096 + 1024 * 4096 + 1024 * 4096 + 4096 * 4096  // norm, q, k, v, o
                          + 4096 + 14336 * 4096 + 14336 * 4096 + 4096 * 14336;          // norm, gate, up, down
    EXPECT_EQ(parameter_count(outline(m)), 128256ll * 4096 + block + 4096 + 128256ll * 4096);
    m.tie_embeddings = true;
    EXPECT_EQ(parameter_count(outline(m)), 128256ll * 4096 + block + 4096);

    spec::ModelSpec l = spec::preset("lfm2-350m");  // a convolution and an attention layer
    l.layers = 2;
    l.conv_layers = "0";
    l.conv_bias = true;
    const int64_t convolution = 3072 * 1024 + 3072 + 1024 * 1 * 3 + 1024 + 1024 * 1024 + 1024;
    const int64_t attention = 1024 * 1024 + 512 * 1024 + 512 * 1024 + 1024 * 1024 + 64 + 64;
    const int64_t rest = 1024 + 1024 + 3 * 4608 * 1024;
    EXPECT_EQ(parameter_count(outline(l)), 65536 * 1024 + convolution + attention + 2 * rest + 1024);

    spec::ModelSpec g = spec::preset("gpt2-124m");
    g.layers = 2;
    g.ffn = 1000;
    const int64_t gpt2_block = 768 + 768 + 768 * 2304 + 2304 + 768 * 768 + 768 + 768 + 768  //
                               + 768 * 1000 + 1000 + 1000 * 768 + 768;
    EXPECT_EQ(parameter_count(outline(g)), 50257 * 768 + 1024 * 768 + 2 * gpt2_block + 768 + 768);
}

spec::ModelSpec dense_gpt(int64_t layers, int64_t width, int64_t vocab) {
    spec::ModelSpec m = spec::preset("gpt2-124m");
    m.layers = layers;
    m.width = width;
    m.heads = m.kv_heads = width / 64;
    m.head_dim = 64;
    m.ffn = 4 * width;
    m.vocab = vocab;
    return m;
}

// Narayanan et al. 2021 (and Korthikanti et al. 2022 without recompute): 72 B L s h^2 (1 + s/(6h) + V/(12Lh)) per
// batch.
TEST(Flops, DenseGptFormula) {
    for (const int64_t s : {128, 2048, 131072}) {
        for (const int64_t vocab : {512, 51200}) {
            const int64_t L = 24, h = 1024, B = 7;
            const auto S = static_cast<double>(s), H = static_cast<double>(h), V = static_cast<double>(vocab);
            const double published = 72.0 * B * L * S * H * H * (1 + S / (6 * H) + V / (12.0 * L * H));
            const double ours = flops(dense_gpt(L, h, vocab), s).full() * B * S;
            EXPECT_NEAR(ours / published, 1, 1e-14) << "s " << s << " V " << vocab;
        }
    }
}

// By hand: N = 12 (4 * 768^2 + 2 * 768 * 3072) + 50257 * 768 = 84934656 + 38597376 = 123532032.
// 6 N = 741192192; attention 12 * 12 * 768 * 1024 = 113246208 full, 56623104 causal.
TEST(Flops, Gpt2Small) {
    const spec::ModelSpec gpt2 = spec::preset("gpt2-124m");
    EXPECT_EQ(matmul_parameters(gpt2), 123532032);
    EXPECT_EQ(flops(gpt2, 1024).full(), 854438400);
    EXPECT_EQ(flops(gpt2, 1024).causal(), 797815296);
    EXPECT_EQ(forward_flops(outline(gpt2), 1024).causal() * 3, 797815296);
}

// Tied or not, the head is one product; the embedding look-up is none.
TEST(Flops, HeadCountsOnceTiedOrNot) {
    spec::ModelSpec m = spec::preset("llama-110m");
    const int64_t tied = matmul_parameters(m);
    m.tie_embeddings = false;
    EXPECT_EQ(matmul_parameters(m), tied);
    // 12 layers of 4 * 768^2 + 3 * 768 * 2048, and 32000 * 768.
    EXPECT_EQ(tied, 12 * (4 * 589824 + 4718592) + 24576000);
}

// Llama 3 8B: 32 layers, C 4096, 32 heads of 128, 8 kv heads, F 14336, V 128256. Per layer q and o 2 * 4096^2, k and v
// 2 * 4096 * 1024, mlp 3 * 4096 * 14336 = 33554432 + 8388608 + 176160768 = 218103808. Head 525336576.
// Attention does not shrink with grouped queries: 12 * 32 * 4096 * 8192.
TEST(Flops, GroupedQueriesShrinkProjectionsOnly) {
    const spec::ModelSpec m = spec::preset("llama3-8b");
    EXPECT_EQ(matmul_parameters(m), 32 * 218103808ll + 525336576);
    const TokenFlops of_token = flops(m, 8192);
    EXPECT_EQ(of_token.matmul, 6.0 * 7504658432.0);
    EXPECT_EQ(of_token.full_attention, 12884901888.0);
    EXPECT_EQ(of_token.full() - of_token.causal(), 6442450944.0);
}

// Pairs (i, j) with |i - j| < W, counted; the formula leaves out terms of one key per query: 1 / 2W of it.
TEST(Flops, WindowCountsTheKeysItLeaves) {
    spec::ModelSpec m = spec::preset("mistral-7b");
    for (const int64_t s : {2048, 4096, 8192}) {
        int64_t pairs = 0;
        for (int64_t i = 0; i < s; ++i) pairs += std::min(s, i + m.window) - std::max<int64_t>(0, i - m.window + 1);
        const double expected = 12.0 * 32 * 4096 * static_cast<double>(pairs) / static_cast<double>(s);
        EXPECT_NEAR(flops(m, s).full_attention / expected, 1, 1.0 / 8192) << s;
    }
    const TokenFlops within = flops(m, 4096);
    m.window = 0;
    EXPECT_EQ(flops(m, 4096), within);  // a window as long as the sequence is none
    EXPECT_GT(flops(m, 8192).full_attention, 2 * within.full_attention * 0.99);
}

// Half of the layers with a window: the mean of all and none.
TEST(Flops, WindowOfSomeLayers) {
    spec::ModelSpec m = spec::preset("mistral-7b");
    const double all = flops(m, 8192).full_attention;
    m.window_layers = "0-7,16-23";
    const double half = flops(m, 8192).full_attention;
    m.window = 0;
    m.window_layers = "";
    EXPECT_DOUBLE_EQ(2 * half, all + flops(m, 8192).full_attention);
}

// LFM2-350M: 10 layers with two projections of 4 C^2 together and no attention, 6 with 2 C^2 + 2 C 512.
TEST(Flops, ConvolutionsHaveProjectionsAndNoKeys) {
    const spec::ModelSpec m = spec::preset("lfm2-350m");
    const int64_t C = 1024, ffn = 3 * C * 4608;
    EXPECT_EQ(matmul_parameters(m), 10 * 4 * C * C + 6 * (2 * C * C + 2 * C * 512) + 16 * ffn + 65536 * C);
    EXPECT_EQ(flops(m, 4096).full_attention, 12.0 * 6 * 4096 * 1024);
}

// The lecture's MLP: 8 layers of 8192 x 8192, no attention: 6 * 8 * 8192^2 for every sequence length.
// Router, shared expert with its gate, and the experts that a token goes to, in the layers that have them.
TEST(Flops, ExpertsThatATokenPasses) {
    spec::ModelSpec m = spec::preset("moe-tiny");
    const int64_t dense = matmul_parameters(spec::preset("llama-tiny"));
    const int64_t C = 128, layers = 4, swiglu = 3 * C * 448;
    EXPECT_EQ(matmul_parameters(m), dense + layers * (2 * 3 * C * 224 + C * 8 - swiglu));
    m.moe.layers = "1-2";
    m.moe.shared_ffn = 100;
    m.moe.shared_gate = true;
    EXPECT_EQ(matmul_parameters(m), dense + 2 * (2 * 3 * C * 224 + C * 8 + 3 * C * 100 + C - swiglu));
    EXPECT_EQ(matmul_parameters(spec::preset("mixtral-8x7b")),
              active_parameter_count(outline(spec::preset("mixtral-8x7b"))) - 32000ll * 4096 - (2 * 32 + 1) * 4096);
}

// DeepSeek-V3: 61 layers of 128 heads, with scores over 192 channels and values of 128. A matrix counts 6 for each
// value that a token uses; the embedding is looked up, and norms (two of 7168, one of 1536, one of 512 a layer, one
// behind) do not multiply matrices.
TEST(Flops, LatentAttention) {
    const TokenFlops of_token = flops(spec::preset("deepseek-v3"), 4096);
    EXPECT_EQ(of_token.full_attention, 3.0 * 61 * 128 * 2 * 4096 * (192 + 128));
    const int64_t norms = 61 * (2 * 7168 + 1536 + 512) + 7168;
    EXPECT_EQ(of_token.matmul, 6.0 * (37'552'282'624 - 129280ll * 7168 - norms));
}

TEST(Flops, WideMlp) {
    const spec::ModelSpec m = spec::preset("mlp-8192");
    EXPECT_EQ(flops(m, 1).full(), 3221225472.0);
    EXPECT_EQ(flops(m, 4096), flops(m, 1));
}

// Korthikanti et al. 2022: full recompute costs one more forward: 96 B L s h^2 (1 + s/(6h) + V/(16Lh)), where the head
// (V term: 96/16 = 6) is not run again.
TEST(Flops, FullRecomputeRunsBlocksOnceMore) {
    const int64_t L = 24, h = 1024, vocab = 51200, s = 2048;
    const double S = s, H = h, V = vocab;
    const double published = 96.0 * L * H * H * (1 + S / (6 * H) + V / (16.0 * L * H));
    const spec::ModelSpec m = dense_gpt(L, h, vocab);
    EXPECT_NEAR(flops(m, s, "full").full() / published, 1, 1e-14);
    EXPECT_EQ(flops(m, s, "every:5"), flops(m, s, "full"));
    EXPECT_EQ(flops(m, s, "sqrt"), flops(m, s, "full"));
    EXPECT_EQ(flops(m, s, "none"), flops(m, s));
    EXPECT_EQ(flops(m, s, "selective"), flops(m, s)) << "norms and SwiGLU are not counted";
}

// 0.8 GFLOP per token at 1000 tokens/s on a machine of 4 TFLOP/s: 20 %.
TEST(Flops, Mfu) {
    EXPECT_DOUBLE_EQ(mfu(0.8e9, 1000, 4e12), 0.2);
    EXPECT_THROW(mfu(1, 1, 0), Error);
    EXPECT_THROW(flops(spec::preset("gpt2-124m"), 0), Error);
}

TEST(Recompute, SegmentsOfAPolicy) {
    EXPECT_EQ(spec::recompute_of("none", 12).segment, 0);
    EXPECT_EQ(spec::recompute_of("full", 12).segment, 1);
    EXPECT_EQ(spec::recompute_of("every:5", 12).segment, 5);
    EXPECT_EQ(spec::recompute_of("selective", 12).segment, 0);
    EXPECT_TRUE(spec::recompute_of("selective", 12).selective);
    EXPECT_EQ(spec::recompute_of("sqrt", 12).segment, 3);  // 3.46
    EXPECT_EQ(spec::recompute_of("sqrt", 13).segment, 4);  // 3.61
    EXPECT_EQ(spec::recompute_of("sqrt", 1).segment, 1);
    for (const char* wrong : {"", "every:", "every:0", "every:-1", "every:2x", "Full"})
        EXPECT_THROW(spec::recompute_of(wrong, 12), UsageError) << wrong;
}

}  // namespace
}  // namespace tutti::models
