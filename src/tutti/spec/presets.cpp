// spec/presets.cpp: the models that have a name.
#include <algorithm>
#include <cmath>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/spec/layers.h"
#include "tutti/spec/nearest.h"
#include "tutti/spec/variants.h"

namespace tutti::spec {
namespace {

// The sizes that make one Llama differ from another.
struct LlamaSizes {
    int64_t vocab, width, layers, heads, kv_heads, head_dim, ffn, max_positions;
};

ModelSpec llama(const std::string& name, const LlamaSizes& s, bool tied = true) {
    ModelSpec m;
    m.preset = name;
    m.vocab = s.vocab;
    m.width = s.width;
    m.layers = s.layers;
    m.heads = s.heads;
    m.kv_heads = s.kv_heads;
    m.head_dim = s.head_dim;
    m.ffn = s.ffn;
    m.max_positions = s.max_positions;
    m.tie_embeddings = tied;
    return m;
}

// Llama 3.1 and 3.2: RoPE base 500000, frequencies stretched beyond 8192 positions (factor 8; 32 in the 1B).
ModelSpec llama3(const std::string& name, const LlamaSizes& s, double rope_factor, bool tied) {
    ModelSpec m = llama(name, s, tied);
    m.rope_theta = 500000;
    m.rope_scaling.factor = rope_factor;
    return m;
}

// Qwen2.5 and Qwen3: RoPE base 10^6, epsilon 10^-6.
ModelSpec qwen(const std::string& name, const LlamaSizes& s, bool tied) {
    ModelSpec m = llama(name, s, tied);
    m.rope_theta = 1000000;
    m.norm_eps = 1e-6;
    return m;
}

ModelSpec qwen2(const std::string& name, const LlamaSizes& s, bool tied) {
    ModelSpec m = qwen(name, s, tied);
    m.qkv_bias = true;
    return m;
}

ModelSpec qwen3(const std::string& name, const LlamaSizes& s, bool tied) {
    ModelSpec m = qwen(name, s, tied);
    m.head_norm = true;
    return m;
}

// --- rows of spec/variants.h -----------------------------------------------------------------------------------------

ModelSpec relative(const char* variant, const std::string& name, const LlamaSizes& s, bool tied, double theta,
                   double eps) {
    ModelSpec m = llama(name, s, tied);
    set_variant(m, variant);
    m.rope_theta = theta;
    m.norm_eps = eps;
    return m;
}

// A window in all layers but every `period`-th.
ModelSpec windowed(ModelSpec m, int64_t window, int64_t period) {
    std::vector<LayerRange> layers;
    for (int64_t first = 0; first < m.layers; first += period)
        layers.push_back({first, std::min(first + period - 1, m.layers) - 1});
    m.window = window;
    m.window_layers = to_text(layers);
    return m;
}

// Gemma 1 (Gemma Team 2024).
ModelSpec gemma(const std::string& name, const LlamaSizes& s) { return relative("gemma", name, s, true, 10000, 1e-6); }

// Gemma 2 (Gemma Team 2024): scores are divided by the root of `scalar`.
ModelSpec gemma2(const std::string& name, const LlamaSizes& s, double scalar, int64_t window = 4096) {
    ModelSpec m = windowed(relative("gemma2", name, s, true, 10000, 1e-6), window, 2);
    m.score_scale = 1 / std::sqrt(scalar);
    m.score_cap = 50;
    m.logit_cap = 30;
    return m;
}

// Gemma 3 (Gemma Team 2025), without the tower for images; from 4B on full layers are stretched eightfold.
ModelSpec gemma3(const std::string& name, const LlamaSizes& s, double scalar, int64_t window, bool stretched = false) {
    ModelSpec m = windowed(relative("gemma3_text", name, s, true, 1000000, 1e-6), window, 6);
    m.score_scale = 1 / std::sqrt(scalar);
    m.window_rope_theta = 10000;
    if (stretched) m.rope_scaling = {.type = "linear", .factor = 8};
    return m;
}

// Phi-3 and 4 (Microsoft 2024), in the contexts that need no LongRoPE.
ModelSpec phi3(const std::string& name, const LlamaSizes& s, bool tied, double theta, int64_t rope_dims = 0,
               int64_t window = 0) {
    ModelSpec m = relative("phi3", name, s, tied, theta, 1e-5);
    m.rope_dims = rope_dims;
    m.window = window;
    return m;
}

ModelSpec olmo2(const std::string& name, const LlamaSizes& s) {
    return relative("olmo2", name, s, false, 500000, 1e-6);
}

// OLMo 3 (Ai2 2025): YaRN in the full layers only.
ModelSpec olmo3(const std::string& name, const LlamaSizes& s, int64_t window, RopeScaling scaling) {
    ModelSpec m = windowed(relative("olmo3", name, s, false, 500000, 1e-6), window, 4);
    m.window_rope_theta = 500000;
    m.rope_scaling = std::move(scaling);
    return m;
}

// SmolLM3 (Hugging Face 2025): every fourth layer has no positions.
ModelSpec smollm3(const std::string& name, const LlamaSizes& s) {
    ModelSpec m = relative("smollm3", name, s, true, 5000000, 1e-6);
    std::vector<LayerRange> without;
    for (int64_t layer = 3; layer < s.layers; layer += 4) without.push_back({layer, layer});
    m.nope_layers = to_text(without);
    return m;
}

// Granite 3 (IBM 2024), with its four numbers.
ModelSpec granite(const std::string& name, const LlamaSizes& s, double score_scale, double logit_divisor) {
    ModelSpec m = relative("granite", name, s, true, 5000000, 1e-5);
    m.embedding_scale = 12;
    m.residual_scale = 0.22;
    m.score_scale = score_scale;
    m.logit_divisor = logit_divisor;
    return m;
}

// GLM-4 (Zhipu 2024, 2025): half of each head is rotated.
ModelSpec glm(const char* variant, const std::string& name, const LlamaSizes& s, double theta, double eps) {
    ModelSpec m = relative(variant, name, s, false, theta, eps);
    m.qkv_bias = true;
    m.rope_dims = s.head_dim / 2;
    return m;
}

// Mistral Small 3.1 (Mistral AI 2025), without the tower for images: no window, and a RoPE base for long contexts.
ModelSpec mistral_small(const std::string& name, const LlamaSizes& s) {
    ModelSpec m = llama(name, s, false);
    m.rope_theta = 1e9;
    return m;
}

// Ministral 3 (Mistral AI 2025): queries grow with the position.
ModelSpec ministral3(const std::string& name, const LlamaSizes& s, bool tied, double factor = 16,
                     int64_t original = 16384) {
    ModelSpec m = relative("ministral3", name, s, tied, 1000000, 1e-5);
    m.rope_scaling = {.type = "yarn", .factor = factor, .attention_factor = 1, .original_max_positions = original};
    m.query_growth = 0.1;
    return m;
}

ModelSpec seed_oss(const std::string& name, const LlamaSizes& s) {
    ModelSpec m = relative("seed_oss", name, s, false, 10000000, 1e-6);
    m.qkv_bias = true;
    return m;
}

// EXAONE 4.0 (LG AI Research 2025): with a window, the full layers have no positions.
ModelSpec exaone4(const std::string& name, const LlamaSizes& s, bool tied, int64_t window) {
    ModelSpec m = relative("exaone4", name, s, tied, 1000000, 1e-5);
    m.rope_scaling.factor = 16;
    if (window == 0) return m;
    m = windowed(m, window, 4);
    std::vector<LayerRange> without;
    for (int64_t layer = 3; layer < s.layers; layer += 4) without.push_back({layer, layer});
    m.nope_layers = to_text(without);
    return m;
}

// The heads of latent attention, without and with the rotated channels, and the two latents.
struct LatentSizes {
    int64_t own, rotated, value, kv, q;
};

// `s.head_dim` and `s.kv_heads` follow from the heads. The first `dense` layers have no experts.
ModelSpec latent(const char* variant, LlamaSizes s, const LatentSizes& l, const MixtureSpec& moe, int64_t dense,
                 double theta, double eps, RopeScaling scaling = {}) {
    s.kv_heads = s.heads;
    s.head_dim = l.own + l.rotated;
    ModelSpec m = relative(variant, "", s, false, theta, eps);
    m.rope_dims = l.rotated;
    m.value_dim = l.value == s.head_dim ? 0 : l.value;
    m.kv_latent = l.kv;
    m.q_latent = l.q;
    m.rope_scaling = std::move(scaling);
    MixtureSpec& e = m.moe;
    e.experts = moe.experts;
    e.top_k = moe.top_k;
    e.ffn = moe.ffn;
    e.shared_ffn = moe.shared_ffn;
    e.scale = moe.scale;
    e.groups = moe.groups;
    e.top_groups = moe.top_groups;
    if (e.groups > 1) e.group_best = e.score == "sigmoid" ? 2 : 1;
    if (dense > 0) e.layers = to_text({{dense, s.layers - 1}});
    return m;
}

ModelSpec with_name(const char* name, ModelSpec m) {
    m.preset = name;
    return m;
}

// YaRN from 4096 positions.
RopeScaling yarn(double factor, double mscale, double beta_fast = 32, int64_t original = 4096) {
    return {.type = "yarn",
            .factor = factor,
            .beta_fast = beta_fast,
            .mscale = mscale,
            .mscale_all_dim = mscale,
            .original_max_positions = original};
}

// ---------------------------------------------------------------------------------------------------------------------

// LFM2 (Liquid AI 2025): attention in every second or third layer, convolutions of three taps in the others.
ModelSpec lfm2(const std::string& name, const LlamaSizes& s, const std::string& conv_layers) {
    ModelSpec m = llama(name, s);
    m.family = Family::lfm2;
    m.head_norm = true;
    m.conv_layers = conv_layers;
    m.conv_kernel = 3;
    m.rope_theta = 1000000;
    return m;
}

// Mistral (Mistral AI 2023), version 0.1: attention in a window.
ModelSpec mistral(const std::string& name, const LlamaSizes& s, int64_t window) {
    ModelSpec m = llama(name, s, false);
    m.window = window;
    return m;
}

// gpt-oss (OpenAI 2025): experts in all layers, no balancing loss.
ModelSpec gpt_oss(const std::string& name, const LlamaSizes& s, int64_t window, int64_t experts, int64_t top_k,
                  int64_t original_positions) {
    ModelSpec m = relative("gpt_oss", name, s, false, 150000, 1e-5);
    m = windowed(std::move(m), window, 2);
    m.qkv_bias = m.output_bias = true;
    m.gate_limit = 7;
    m.rope_scaling = {.type = "yarn", .factor = 32, .truncate = false, .original_max_positions = original_positions};
    m.moe.experts = experts;
    m.moe.top_k = top_k;
    m.moe.ffn = s.ffn;
    return m;
}

// Qwen3-Next (Qwen 2025) and Qwen3.5 (2026): every fourth layer has attention, the others the gated delta rule.
struct DeltaSizes {
    int64_t key_heads, value_heads, dim;
};
ModelSpec qwen3_next(const char* row, const std::string& name, const LlamaSizes& s, bool tied, const DeltaSizes& d,
                     MixtureSpec moe = {}) {
    ModelSpec m = relative(row, name, s, tied, 10000000, 1e-6);
    std::vector<bool> with;
    for (int64_t i = 0; i < m.layers; ++i) with.push_back((i + 1) % 4 != 0);
    m.delta_layers = to_text(layer_ranges(with));
    m.conv_kernel = 4;
    m.delta_key_heads = d.key_heads;
    m.delta_value_heads = d.value_heads;
    m.delta_key_dim = m.delta_value_dim = d.dim;
    m.rope_dims = m.head_dim / 4;
    moe.shared_gate = moe.experts > 0;
    m.moe = std::move(moe);
    return m;
}

// The scan of Mamba-2 (Dao and Gu 2024): heads, channels of each, groups, state.
struct ScanSizes {
    int64_t heads, head_dim, groups, state;
};
ModelSpec with_scan(ModelSpec m, const ScanSizes& s) {
    m.scan_heads = s.heads;
    m.scan_head_dim = s.head_dim;
    m.scan_groups = s.groups;
    m.scan_state = s.state;
    m.conv_kernel = 4;
    m.conv_bias = true;
    return m;
}

// Granite 4 (IBM 2025): attention without positions in the layers 5, 15, 25, ..., scans in the others.
ModelSpec granite4(const std::string& name, const LlamaSizes& s, const ScanSizes& scan, int64_t first, int64_t period,
                   double score_scale, double logit_divisor, MixtureSpec moe = {}) {
    ModelSpec m = with_scan(relative("granitemoehybrid", name, s, true, 10000, 1e-5), scan);
    m.embedding_scale = 12;
    m.residual_scale = 0.22;
    m.score_scale = score_scale;
    m.logit_divisor = logit_divisor;
    std::vector<bool> with;
    for (int64_t i = 0; i < m.layers; ++i) with.push_back(i % period != first);
    m.scan_layers = to_text(layer_ranges(with));
    m.nope_layers = to_text({{0, m.layers - 1}});
    m.moe = std::move(moe);
    return m;
}

// Nemotron-H (NVIDIA 2025) and Nemotron 3 Nano.
ModelSpec nemotron(const std::string& name, const LlamaSizes& s, const std::string& pattern, const ScanSizes& scan,
                   MixtureSpec moe = {}) {
    ModelSpec m = with_scan(relative("nemotron_h", name, s, false, 10000, 1e-5), scan);
    m.pattern = pattern;
    m.layers = std::ssize(pattern);
    m.nope_layers = to_text({{0, m.layers - 1}});
    m.scan_step_min = 0.001;
    if (moe.experts > 0) {
        moe.score = "sigmoid";
        moe.expert_bias = true;
        moe.scale = 2.5;
    }
    m.moe = std::move(moe);
    return m;
}

// Mamba-2 (Dao and Gu 2024): scans alone. `s`: as for Nemotron-H.
ModelSpec mamba2(const std::string& name, const LlamaSizes& s, int64_t layers, const ScanSizes& scan) {
    ModelSpec m = with_scan(relative("mamba2", name, s, false, 10000, 1e-5), scan);
    m.layers = layers;
    m.pattern = std::string(to_size(layers), 'M');
    m.nope_layers = to_text({{0, layers - 1}});
    return m;
}

// Falcon-H1 (TII 2025), with the factors of its 0.5B.
ModelSpec falcon_h1(const std::string& name, const LlamaSizes& s, const ScanSizes& scan) {
    ModelSpec m = with_scan(relative("falcon_h1", name, s, false, 1e11, 1e-5), scan);
    m.scan_layers = to_text({{0, m.layers - 1}});
    m.scan_beside = true;
    m.scan_norm = "none";
    m.embedding_scale = 5.656854249492381;
    m.logit_divisor = 1 / 0.0390625;
    m.multipliers = to_text(Multipliers{.key = 0.39062499999999994,
                                        .attention_out = 0.9375,
                                        .scan_in = 1.25,
                                        .scan_out = 0.23570226039551587,
                                        .scan = {0.3535533905932738, 0.25, 0.3535533905932738, 0.5, 0.3535533905932738},
                                        .gate = 0.8838834764831844,
                                        .down = 0.5859375});
    return m;
}

// Published with dropout 0.1; here 0, as one pass over much text needs none. Set model.dropout for the original.
ModelSpec gpt2(const std::string& name, int64_t width, int64_t layers, int64_t heads) {
    ModelSpec m = llama(name, {50257, width, layers, heads, heads, width / heads, 4 * width, 1024});
    m.family = Family::gpt2;
    m.rope_theta = 0;
    return m;
}

// A mixture like Mistral's and Qwen's, with the published balancing losses.
ModelSpec mixture(ModelSpec m, MixtureSpec moe) {
    moe.aux_loss = "microbatch";
    m.moe = std::move(moe);
    return m;
}

// Balanced by a bias of each expert, without a loss.
ModelSpec lfm2_moe(const std::string& name, const LlamaSizes& s, const std::string& conv_layers, MixtureSpec moe) {
    ModelSpec m = lfm2(name, s, conv_layers);
    moe.score = "sigmoid";
    moe.expert_bias = true;
    m.moe = std::move(moe);
    return m;
}

// Mixtral (Mistral AI 2024): two of eight experts.
ModelSpec mixtral(const std::string& name, const LlamaSizes& s, double aux_coef) {
    ModelSpec m = llama(name, s, false);
    m.rope_theta = 1e6;
    return mixture(std::move(m), {.experts = 8, .top_k = 2, .ffn = s.ffn, .aux_coef = aux_coef});
}

ModelSpec mlp(const std::string& name, int64_t width, int64_t layers) {
    ModelSpec m = llama(name, {0, width, layers, 0, 0, 0, 0, 0}, false);
    m.family = Family::mlp;
    m.norm_eps = 0;
    m.rope_theta = 0;
    return m;
}

// Qwen's first mixtures: a gated shared expert, and weights of the chosen experts that do not add up to 1.
ModelSpec qwen2_moe(const std::string& name, const LlamaSizes& s, MixtureSpec moe) {
    moe.shared_gate = true;
    moe.normalise = false;
    moe.aux_coef = 0.001;
    return mixture(qwen2(name, s, false), std::move(moe));
}

std::vector<ModelSpec> all_presets() {
    return {
        //                   V       C      L   H  KV    D    F    positions
        llama("llama-tiny", {256, 128, 4, 4, 4, 32, 448, 1024}),        // 0.98M; F = 3.5 C as Llama 3
        llama("llama-5m", {256, 256, 6, 4, 4, 64, 704, 2048}),          // 4.9M
        llama("llama-20m", {256, 512, 6, 8, 8, 64, 1408, 2048}),        // 19.4M
        llama("llama-110m", {32000, 768, 12, 12, 12, 64, 2048, 1024}),  // 109.5M because tied (untied: 134.1M)
        gpt2("gpt2-124m", 768, 12, 12),
        gpt2("gpt2-xl", 1600, 48, 25),
        llama("llama2-7b", {32000, 4096, 32, 32, 32, 128, 11008, 4096}, false),
        llama3("llama3.2-1b", {128256, 2048, 16, 32, 8, 64, 8192, 131072}, 32, true),
        llama3("llama3.2-3b", {128256, 3072, 28, 24, 8, 128, 8192, 131072}, 32, true),
        llama3("llama3-8b", {128256, 4096, 32, 32, 8, 128, 14336, 131072}, 8, false),
        llama3("llama3-70b", {128256, 8192, 80, 64, 8, 128, 28672, 131072}, 8, false),
        llama3("llama3-405b", {128256, 16384, 126, 128, 8, 128, 53248, 131072}, 8, false),
        mistral("mistral-7b", {32000, 4096, 32, 32, 8, 128, 14336, 32768}, 4096),
        qwen2("qwen2.5-0.5b", {151936, 896, 24, 14, 2, 64, 4864, 32768}, true),
        qwen2("qwen2.5-1.5b", {151936, 1536, 28, 12, 2, 128, 8960, 131072}, true),
        qwen2("qwen2.5-7b", {152064, 3584, 28, 28, 4, 128, 18944, 131072}, false),
        qwen3("qwen3-0.6b", {151936, 1024, 28, 16, 8, 128, 3072, 40960}, true),
        qwen3("qwen3-4b", {151936, 2560, 36, 32, 8, 128, 9728, 40960}, true),
        qwen3("qwen3-8b", {151936, 4096, 36, 32, 8, 128, 12288, 40960}, false),
        gemma("gemma-tiny", {256, 128, 4, 4, 1, 64, 448, 1024}),
        gemma("gemma-2b", {256000, 2048, 18, 8, 1, 256, 16384, 8192}),
        gemma("gemma-7b", {256000, 3072, 28, 16, 16, 256, 24576, 8192}),
        gemma2("gemma2-tiny", {256, 128, 4, 4, 2, 64, 448, 1024}, 64, 32),
        gemma2("gemma2-2b", {256000, 2304, 26, 8, 4, 256, 9216, 8192}, 256),
        gemma2("gemma2-9b", {256000, 3584, 42, 16, 8, 256, 14336, 8192}, 256),
        gemma2("gemma2-27b", {256000, 4608, 46, 32, 16, 128, 36864, 8192}, 144),
        gemma3("gemma3-tiny", {256, 128, 6, 4, 1, 64, 448, 1024}, 64, 32),
        gemma3("gemma3-270m", {262144, 640, 18, 4, 1, 256, 2048, 32768}, 256, 512),
        gemma3("gemma3-1b", {262144, 1152, 26, 4, 1, 256, 6912, 32768}, 256, 512),
        gemma3("gemma3-4b", {262208, 2560, 34, 8, 4, 256, 10240, 131072}, 256, 1024, true),
        gemma3("gemma3-27b", {262208, 5376, 62, 32, 16, 128, 21504, 131072}, 168, 1024, true),
        phi3("phi3-tiny", {256, 128, 4, 4, 2, 32, 448, 1024}, false, 10000, 24, 32),
        phi3("phi3-mini", {32064, 3072, 32, 32, 32, 96, 8192, 4096}, false, 10000, 0, 2047),
        phi3("phi4", {100352, 5120, 40, 40, 10, 128, 17920, 16384}, false, 250000),
        phi3("phi4-mini", {200064, 3072, 32, 24, 8, 128, 8192, 4096}, true, 10000, 96),
        olmo2("olmo2-tiny", {256, 128, 4, 4, 2, 32, 448, 1024}),
        olmo2("olmo2-1b", {100352, 2048, 16, 16, 16, 128, 8192, 4096}),
        olmo2("olmo2-7b", {100352, 4096, 32, 32, 32, 128, 11008, 4096}),
        olmo2("olmo2-32b", {100352, 5120, 64, 40, 8, 128, 27648, 4096}),
        olmo3("olmo3-tiny", {256, 128, 4, 4, 2, 32, 448, 1024}, 32,
              {.type = "yarn", .factor = 4, .original_max_positions = 256}),
        olmo3("olmo3-7b", {100278, 4096, 32, 32, 32, 128, 11008, 65536}, 4096,
              {.type = "yarn", .factor = 8, .original_max_positions = 8192}),
        olmo3("olmo3-32b", {100278, 5120, 64, 40, 8, 128, 27648, 65536}, 4096,
              {.type = "yarn", .factor = 8, .original_max_positions = 8192}),
        smollm3("smollm3-tiny", {256, 128, 4, 4, 1, 32, 448, 1024}),
        smollm3("smollm3-3b", {128256, 2048, 36, 16, 4, 128, 11008, 65536}),
        granite("granite-tiny", {256, 128, 4, 4, 2, 32, 448, 1024}, 0.03125, 4),
        granite("granite3.1-2b", {49155, 2048, 40, 32, 8, 64, 8192, 131072}, 0.015625, 8),
        granite("granite3.1-8b", {49155, 4096, 40, 32, 8, 128, 12800, 131072}, 0.0078125, 16),
        glm("glm", "glm-tiny", {256, 128, 4, 4, 2, 32, 448, 1024}, 10000, 1e-5),
        glm("glm", "glm4-9b-chat", {151552, 4096, 40, 32, 2, 128, 13696, 131072}, 5000000, 1.5625e-7),
        glm("glm4", "glm4-tiny", {256, 128, 4, 4, 2, 32, 448, 1024}, 10000, 1e-5),
        glm("glm4", "glm4-9b-0414", {151552, 4096, 40, 32, 2, 128, 13696, 32768}, 10000, 1e-5),
        glm("glm4", "glm4-32b-0414", {151552, 6144, 61, 48, 2, 128, 23040, 32768}, 10000, 1e-5),
        mistral_small("mistral-small-3.1", {131072, 5120, 40, 32, 8, 128, 32768, 131072}),
        ministral3("ministral3-tiny", {256, 128, 4, 4, 2, 32, 448, 1024}, true, 4, 256),
        ministral3("ministral3-3b", {131072, 3072, 26, 32, 8, 128, 9216, 262144}, true),
        ministral3("ministral3-8b", {131072, 4096, 34, 32, 8, 128, 14336, 262144}, false),
        ministral3("ministral3-14b", {131072, 5120, 40, 32, 8, 128, 16384, 262144}, false),
        seed_oss("seed-oss-tiny", {256, 128, 4, 4, 2, 48, 448, 1024}),
        seed_oss("seed-oss-36b", {155136, 5120, 64, 80, 8, 128, 27648, 524288}),
        exaone4("exaone4-tiny", {256, 128, 4, 4, 2, 32, 448, 1024}, true, 32),
        exaone4("exaone4-1.2b", {102400, 2048, 30, 32, 8, 64, 4096, 65536}, true, 0),
        exaone4("exaone4-32b", {102400, 5120, 64, 40, 8, 128, 27392, 131072}, false, 4096),
        // DeepSeek-V2, V3 (DeepSeek-AI 2024), Moonlight, Kimi K2 (Moonshot AI 2025), GLM-4.7-Flash (Z.ai 2026).
        with_name(
            "deepseek-v2-tiny",
            latent("deepseek_v2", {256, 128, 4, 4, 0, 0, 320, 1024}, {24, 8, 16, 48, 0},
                   {.experts = 8, .top_k = 3, .ffn = 64, .shared_ffn = 128, .scale = 4, .groups = 4, .top_groups = 2},
                   1, 10000, 1e-6, yarn(4, 0.707, 32, 256))),
        with_name(
            "deepseek-v2-lite",
            latent("deepseek_v2", {102400, 2048, 27, 16, 0, 0, 10944, 163840}, {128, 64, 128, 512, 0},
                   {.experts = 64, .top_k = 6, .ffn = 1408, .shared_ffn = 2816}, 1, 10000, 1e-6, yarn(40, 0.707))),
        with_name("deepseek-v2",
                  latent("deepseek_v2", {102400, 5120, 60, 128, 0, 0, 12288, 163840}, {128, 64, 128, 512, 1536},
                         {.experts = 160,
                          .top_k = 6,
                          .ffn = 1536,
                          .shared_ffn = 3072,
                          .scale = 16,
                          .groups = 8,
                          .top_groups = 3},
                         1, 10000, 1e-6, yarn(40, 0.707))),
        with_name(
            "deepseek-v3-tiny",
            latent("deepseek_v3", {256, 128, 4, 4, 0, 0, 320, 1024}, {24, 8, 16, 48, 64},
                   {.experts = 8, .top_k = 3, .ffn = 64, .shared_ffn = 64, .scale = 2.5, .groups = 4, .top_groups = 2},
                   1, 10000, 1e-6, yarn(4, 1, 32, 256))),
        with_name("deepseek-v3",
                  latent("deepseek_v3", {129280, 7168, 61, 128, 0, 0, 18432, 163840}, {128, 64, 128, 512, 1536},
                         {.experts = 256,
                          .top_k = 8,
                          .ffn = 2048,
                          .shared_ffn = 2048,
                          .scale = 2.5,
                          .groups = 8,
                          .top_groups = 4},
                         3, 10000, 1e-6, yarn(40, 1))),
        with_name("moonlight-16b-a3b",
                  latent("deepseek_v3", {163840, 2048, 27, 16, 0, 0, 11264, 8192}, {128, 64, 128, 512, 0},
                         {.experts = 64, .top_k = 6, .ffn = 1408, .shared_ffn = 2816, .scale = 2.446}, 1, 50000, 1e-5)),
        with_name("kimi-k2-tiny", latent("kimi_k2", {256, 128, 4, 4, 0, 0, 320, 1024}, {24, 8, 16, 48, 64},
                                         {.experts = 8, .top_k = 2, .ffn = 64, .shared_ffn = 64, .scale = 2.827}, 1,
                                         50000, 1e-6, yarn(4, 1, 1, 256))),
        with_name("kimi-k2", latent("kimi_k2", {163840, 7168, 61, 64, 0, 0, 18432, 131072}, {128, 64, 128, 512, 1536},
                                    {.experts = 384, .top_k = 8, .ffn = 2048, .shared_ffn = 2048, .scale = 2.827}, 1,
                                    50000, 1e-6, yarn(32, 1, 1))),
        with_name("glm4.7-flash-tiny",
                  latent("glm4_moe_lite", {256, 128, 4, 4, 0, 0, 320, 1024}, {24, 8, 32, 48, 64},
                         {.experts = 8, .top_k = 2, .ffn = 64, .shared_ffn = 64, .scale = 1.8}, 1, 1000000, 1e-5)),
        with_name("glm4.7-flash",
                  latent("glm4_moe_lite", {154880, 2048, 47, 20, 0, 0, 10240, 202752}, {192, 64, 256, 512, 768},
                         {.experts = 64, .top_k = 4, .ffn = 1536, .shared_ffn = 1536, .scale = 1.8}, 1, 1000000, 1e-5)),
        qwen3_next("qwen3_next", "qwen3-next-tiny", {256, 128, 4, 4, 2, 32, 256, 1024}, false, {2, 4, 16},
                   {.experts = 8, .top_k = 3, .ffn = 64, .shared_ffn = 64}),
        qwen3_next("qwen3_next", "qwen3-next-80b-a3b", {151936, 2048, 48, 16, 2, 256, 5632, 262144}, false,
                   {16, 32, 128}, {.experts = 512, .top_k = 10, .ffn = 512, .shared_ffn = 512}),
        qwen3_next("qwen3_5_text", "qwen3.5-tiny", {256, 128, 4, 4, 2, 32, 448, 1024}, true, {4, 4, 16}),
        qwen3_next("qwen3_5_text", "qwen3.5-4b", {248320, 2560, 32, 16, 4, 256, 9216, 262144}, true, {16, 32, 128}),
        qwen3_next("qwen3_5_text", "qwen3.5-9b", {248320, 4096, 32, 16, 4, 256, 12288, 262144}, false, {16, 32, 128}),
        qwen3_next("qwen3_5_text", "qwen3.5-27b", {248320, 5120, 64, 24, 4, 256, 17408, 262144}, false, {16, 48, 128}),
        qwen3_next("qwen3_5_moe_text", "qwen3.5-moe-tiny", {256, 128, 4, 4, 2, 32, 64, 1024}, false, {2, 4, 16},
                   {.experts = 8, .top_k = 2, .ffn = 64, .shared_ffn = 64}),
        qwen3_next("qwen3_5_moe_text", "qwen3.5-35b-a3b", {248320, 2048, 40, 16, 2, 256, 512, 262144}, false,
                   {16, 32, 128}, {.experts = 256, .top_k = 8, .ffn = 512, .shared_ffn = 512}),
        granite4("granite4-tiny", {256, 128, 4, 4, 2, 32, 64, 1024}, {8, 32, 1, 16}, 2, 4, 0.03125, 4,
                 {.experts = 8, .top_k = 2, .ffn = 64, .shared_ffn = 64}),
        granite4("granite4-h-micro", {100352, 2048, 40, 32, 8, 64, 8192, 131072}, {64, 64, 1, 128}, 5, 10, 0.015625, 8),
        granite4("granite4-h-tiny", {100352, 1536, 40, 12, 4, 128, 512, 131072}, {48, 64, 1, 128}, 5, 10, 0.0078125, 6,
                 {.experts = 64, .top_k = 6, .ffn = 512, .shared_ffn = 1024}),
        granite4("granite4-h-small", {100352, 4096, 40, 32, 8, 128, 768, 131072}, {128, 64, 1, 128}, 5, 10, 0.0078125,
                 16, {.experts = 72, .top_k = 10, .ffn = 768, .shared_ffn = 1536}),
        nemotron("nemotron-h-tiny", {256, 128, 0, 4, 2, 32, 320, 1024}, "M*-E", {8, 32, 2, 16},
                 {.experts = 8, .top_k = 2, .ffn = 64, .shared_ffn = 64, .latent = 64}),
        nemotron("nemotron-h-8b", {131072, 4096, 0, 32, 8, 128, 21504, 8192},
                 "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-", {128, 64, 8, 128}),
        nemotron("nemotron3-nano-30b", {131072, 2688, 0, 32, 2, 128, 1856, 262144},
                 "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", {64, 64, 8, 128},
                 {.experts = 128, .top_k = 6, .ffn = 1856, .shared_ffn = 3712}),
        mamba2("mamba2-tiny", {256, 128, 0, 8, 8, 32, 128, 1 << 20}, 4, {8, 32, 2, 16}),
        mamba2("mamba-codestral-7b", {32768, 4096, 0, 128, 128, 64, 4096, 1 << 20}, 64, {128, 64, 8, 128}),
        falcon_h1("falcon-h1-tiny", {256, 128, 4, 4, 2, 32, 256, 1024}, {8, 24, 1, 16}),
        falcon_h1("falcon-h1-0.5b", {32784, 1024, 36, 8, 2, 64, 2048, 16384}, {24, 64, 1, 128}),
        gpt_oss("gpt-oss-tiny", {256, 128, 4, 4, 2, 32, 128, 1024}, 32, 8, 2, 64),
        gpt_oss("gpt-oss-20b", {201088, 2880, 24, 64, 8, 64, 2880, 131072}, 128, 32, 4, 4096),
        gpt_oss("gpt-oss-120b", {201088, 2880, 36, 64, 8, 64, 2880, 131072}, 128, 128, 4, 4096),
        lfm2("lfm2-tiny", {256, 128, 4, 4, 2, 32, 448, 1024}, "0-1,3"),  // 0.96M
        lfm2("lfm2-350m", {65536, 1024, 16, 16, 8, 64, 4608, 128000}, "0-1,3-4,6-7,9,11,13,15"),
        lfm2("lfm2-700m", {65536, 1536, 16, 24, 8, 64, 6912, 128000}, "0-1,3-4,6-7,9,11,13,15"),
        lfm2("lfm2-1.2b", {65536, 2048, 16, 32, 8, 64, 8192, 128000}, "0-1,3-4,6-7,9,11,13,15"),
        mixture(llama("moe-tiny", {256, 128, 4, 4, 4, 32, 448, 1024}),
                {.experts = 8, .top_k = 2, .ffn = 224, .aux_coef = 0.05}),  // 3.05M, of which a token passes 1M
        mixtral("mixtral-8x7b", {32000, 4096, 32, 32, 8, 128, 14336, 32768}, 0.02),
        mixtral("mixtral-8x22b", {32768, 6144, 56, 48, 8, 128, 16384, 65536}, 0.001),
        qwen2_moe("qwen1.5-moe-a2.7b", {151936, 2048, 24, 16, 16, 128, 5632, 8192},
                  {.experts = 60, .top_k = 4, .ffn = 1408, .shared_ffn = 5632}),
        qwen2_moe("qwen2-57b-a14b", {151936, 3584, 28, 28, 4, 128, 18944, 131072},
                  {.experts = 64, .top_k = 8, .ffn = 2560, .shared_ffn = 20480}),
        mixture(qwen3("qwen3-30b-a3b", {151936, 2048, 48, 32, 4, 128, 6144, 40960}, false),
                {.experts = 128, .top_k = 8, .ffn = 768, .aux_coef = 0.001}),
        mixture(qwen3("qwen3-235b-a22b", {151936, 4096, 94, 64, 4, 128, 12288, 40960}, false),
                {.experts = 128, .top_k = 8, .ffn = 1536, .aux_coef = 0.001}),
        lfm2_moe("lfm2-8b-a1b", {65536, 2048, 24, 32, 8, 64, 7168, 128000}, "0-1,3-5,7-9,11-13,15-17,19-20,22-23",
                 {.experts = 32, .top_k = 4, .ffn = 1792, .layers = "2-23"}),
        lfm2_moe("lfm2-24b-a2b", {65536, 2048, 40, 32, 8, 64, 7168, 128000},
                 "0-1,3-5,7-9,11-13,15-17,19-21,23-25,27-29,31-33,35-37,39",
                 {.experts = 64, .top_k = 4, .ffn = 1536, .layers = "2-39"}),
        mlp("mlp-8192", 8192, 8),
    };
}

}  // namespace

std::string name_of(const ModelSpec& model) {
    if (!model.preset.empty()) return model.preset;
    const size_t end = model.hf.find_last_not_of('/');
    if (end == std::string::npos) return std::string(name_of(model.family));
    return model.hf.substr(0, end + 1).substr(model.hf.substr(0, end + 1).rfind('/') + 1);
}

ModelSpec preset(const std::string& name) {
    for (ModelSpec& model : all_presets()) {
        if (model.preset == name) return std::move(model);
    }
    const std::vector<std::string> names = preset_names();
    throw UsageError(
        concat("unknown preset \"", name, "\"; the nearest is \"", nearest(name, names), "\" of ", joined(names)));
}

std::vector<std::string> preset_names() {
    std::vector<std::string> names;
    for (const ModelSpec& model : all_presets()) names.push_back(model.preset);
    return names;
}

}  // namespace tutti::spec
