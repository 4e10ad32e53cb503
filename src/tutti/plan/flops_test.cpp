// FLOPs against formulas that others published and against values worked out by hand.
#include "tutti/plan/flops.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tutti/base/error.h"
#include "tutti/spec/layers.h"

namespace tutti::plan {
namespace {

// N_matmul of forward_flops().
int64_t matmul_parameters(const spec::ModelSpec& m) { return static_cast<int64_t>(forward_flops(m, 1).matmul / 2); }

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
            const double ours = model_flops(dense_gpt(L, h, vocab), s).full() * B * S;
            EXPECT_NEAR(ours / published, 1, 1e-14) << "s " << s << " V " << vocab;
        }
    }
}

// By hand: N = 12 (4 * 768^2 + 2 * 768 * 3072) + 50257 * 768 = 84934656 + 38597376 = 123532032.
// 6 N = 741192192; attention 12 * 12 * 768 * 1024 = 113246208 full, 56623104 causal.
TEST(Flops, Gpt2Small) {
    const spec::ModelSpec gpt2 = spec::preset("gpt2-124m");
    EXPECT_EQ(matmul_parameters(gpt2), 123532032);
    EXPECT_EQ(model_flops(gpt2, 1024).full(), 854438400);
    EXPECT_EQ(model_flops(gpt2, 1024).causal(), 797815296);
    EXPECT_EQ(forward_flops(gpt2, 1024).causal() * 3, 797815296);
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
    const TokenFlops flops = model_flops(m, 8192);
    EXPECT_EQ(flops.matmul, 6.0 * 7504658432.0);
    EXPECT_EQ(flops.full_attention, 12884901888.0);
    EXPECT_EQ(flops.full() - flops.causal(), 6442450944.0);
}

// Pairs (i, j) with |i - j| < W, counted; the formula leaves out terms of one key per query: 1 / 2W of it.
TEST(Flops, WindowCountsTheKeysItLeaves) {
    spec::ModelSpec m = spec::preset("mistral-7b");
    for (const int64_t s : {2048, 4096, 8192}) {
        int64_t pairs = 0;
        for (int64_t i = 0; i < s; ++i) pairs += std::min(s, i + m.window) - std::max<int64_t>(0, i - m.window + 1);
        const double expected = 12.0 * 32 * 4096 * static_cast<double>(pairs) / static_cast<double>(s);
        EXPECT_NEAR(model_flops(m, s).full_attention / expected, 1, 1.0 / 8192) << s;
    }
    const TokenFlops within = model_flops(m, 4096);
    m.window = 0;
    EXPECT_EQ(model_flops(m, 4096), within);  // a window as long as the sequence is none
    EXPECT_GT(model_flops(m, 8192).full_attention, 2 * within.full_attention * 0.99);
}

// Half of the layers with a window: the mean of all and none.
TEST(Flops, WindowOfSomeLayers) {
    spec::ModelSpec m = spec::preset("mistral-7b");
    const double all = model_flops(m, 8192).full_attention;
    m.window_layers = "0-7,16-23";
    const double half = model_flops(m, 8192).full_attention;
    m.window = 0;
    m.window_layers = "";
    EXPECT_DOUBLE_EQ(2 * half, all + model_flops(m, 8192).full_attention);
}

// LFM2-350M: 10 layers with two projections of 4 C^2 together and no attention, 6 with 2 C^2 + 2 C 512.
TEST(Flops, ConvolutionsHaveProjectionsAndNoKeys) {
    const spec::ModelSpec m = spec::preset("lfm2-350m");
    const int64_t C = 1024, ffn = 3 * C * 4608;
    EXPECT_EQ(matmul_parameters(m), 10 * 4 * C * C + 6 * (2 * C * C + 2 * C * 512) + 16 * ffn + 65536 * C);
    EXPECT_EQ(model_flops(m, 4096).full_attention, 12.0 * 6 * 4096 * 1024);
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
              spec::active_parameter_count(spec::preset("mixtral-8x7b")) - 32000ll * 4096 - (2 * 32 + 1) * 4096);
}

TEST(Flops, WideMlp) {
    const spec::ModelSpec m = spec::preset("mlp-8192");
    EXPECT_EQ(model_flops(m, 1).full(), 3221225472.0);
    EXPECT_EQ(model_flops(m, 4096), model_flops(m, 1));
}

// Korthikanti et al. 2022: full recompute costs one more forward: 96 B L s h^2 (1 + s/(6h) + V/(16Lh)), where the head
// (V term: 96/16 = 6) is not run again.
TEST(Flops, FullRecomputeRunsBlocksOnceMore) {
    const int64_t L = 24, h = 1024, vocab = 51200, s = 2048;
    const double S = s, H = h, V = vocab;
    const double published = 96.0 * L * H * H * (1 + S / (6 * H) + V / (16.0 * L * H));
    const spec::ModelSpec m = dense_gpt(L, h, vocab);
    EXPECT_NEAR(hardware_flops(m, s, "full").full() / published, 1, 1e-14);
    EXPECT_EQ(hardware_flops(m, s, "every:5"), hardware_flops(m, s, "full"));
    EXPECT_EQ(hardware_flops(m, s, "sqrt"), hardware_flops(m, s, "full"));
    EXPECT_EQ(hardware_flops(m, s, "none"), model_flops(m, s));
    EXPECT_EQ(hardware_flops(m, s, "selective"), model_flops(m, s)) << "norms and SwiGLU are not counted";
}

// 0.8 GFLOP per token at 1000 tokens/s on a machine of 4 TFLOP/s: 20 %.
TEST(Flops, Mfu) {
    EXPECT_DOUBLE_EQ(mfu(0.8e9, 1000, 4e12), 0.2);
    EXPECT_THROW(mfu(1, 1, 0), Error);
    EXPECT_THROW(model_flops(spec::preset("gpt2-124m"), 0), Error);
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
}  // namespace tutti::plan
