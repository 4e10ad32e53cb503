// spec/model_spec.h: a model as plain data, before any tensor exists.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::spec {

// gpt2: learned positions, LayerNorm, biases, tanh GELU. llama: RoPE, RMSNorm, SwiGLU, grouped-query attention; with
// the fields below also Mistral (window), Qwen2 (qkv_bias), Qwen3 (head_norm) and their mixtures of experts (moe).
// lfm2: the same with head_norm, and in some layers a gated short convolution in place of attention; with moe LFM2-MoE.
// mlp: `layers` times a bias-free Linear width -> width and a ReLU, squared error; it has no vocabulary.
enum class Family { gpt2, llama, lfm2, mlp };
inline constexpr Family kFamilies[] = {Family::gpt2, Family::llama, Family::lfm2, Family::mlp};
std::string_view name_of(Family family);  // "llama"

// A change of the RoPE frequencies for contexts beyond the original ones; factor 0 means off. llama3: Llama 3.1 to 3.3.
struct RopeScaling {
    std::string type = "llama3";  // llama3 | linear | yarn
    double factor = 0;
    double low_freq_factor = 1;             // llama3
    double high_freq_factor = 4;            // llama3
    double beta_fast = 32;                  // yarn
    double beta_slow = 1;                   // yarn
    double attention_factor = 0;            // yarn: multiplies cosines and sines; 0: 0.1 ln(factor) + 1
    int64_t original_max_positions = 8192;  // llama3, yarn
    bool operator==(const RopeScaling&) const = default;
};

// Experts in place of the feed-forward part of a layer. A router sends each token to top_k experts; their outputs are
// summed with the router's weights (Shazeer et al. 2017; Fedus et al. 2021).
struct MixtureSpec {
    int64_t experts = 0;            // E; 0: none
    int64_t top_k = 0;              // of a token
    int64_t ffn = 0;                // inner size of an expert
    std::string layers;             // layers with experts, "2-23"; "": all
    int64_t shared_ffn = 0;         // inner size of the shared expert, which processes every token; 0: none
    bool shared_gate = false;       // the shared expert's output times sigmoid(a weight . x) (Qwen2)
    std::string score = "softmax";  // softmax | sigmoid of the router's logits
    bool normalise = true;          // the weights of a token's experts sum to `scale`
    double scale = 1;               // of the weights
    bool expert_bias = false;       // added to the scores for the choice, changed by load (Wang et al. 2024)
    int64_t groups = 1;             // of experts; those of a token are in top_groups groups (DeepSeek)
    int64_t top_groups = 1;
    double capacity_factor = 0;        // an expert accepts factor * T k / E choices of a microbatch; 0: all
    std::string drop = "probability";  // probability | position: the choices accepted first
    // A loss that balances the loads: over the tokens of a microbatch, of a sequence, of the ranks and microbatches of
    // a step so far (global), or over a microbatch and all layers together, as in transformers.
    std::string aux_loss = "none";  // none | microbatch | sequence | global | all_layers
    double aux_coef = 0;
    double z_coef = 0;  // of the mean squared ln sum exp(logits) (Zoph et al. 2022)
    bool operator==(const MixtureSpec&) const = default;
};

// A field that the family does not use must be 0; validate() refuses any other value, so no request is ignored.
struct ModelSpec {
    std::string preset = "llama-tiny";  // source of the fields below; "" when all are given or from hf
    std::string hf;                     // directory of a Hugging Face model: missing fields and initial weights
    Family family = Family::llama;
    int64_t vocab = 256;
    int64_t width = 128;           // C; for mlp D
    int64_t layers = 4;            // L
    int64_t heads = 4;             // H
    int64_t kv_heads = 4;          // grouped-query attention when fewer than heads
    int64_t head_dim = 32;         // D; heads * head_dim may differ from width, but not for gpt2
    int64_t ffn = 448;             // F
    bool qkv_bias = false;         // on the query, key and value projections (Qwen2); gpt2 has all biases anyway
    bool output_bias = false;      // on attention's output projection
    bool mlp_bias = false;         // on the three projections of the MLP
    bool head_norm = false;        // RMSNorm of each query and key head before RoPE (Qwen3, lfm2)
    int64_t window = 0;            // newest keys that a query attends to, its own included (Mistral); 0: all
    std::string window_layers;     // layers with the window, "0,2-5"; "": all (spec/layers.h)
    std::string conv_layers;       // lfm2: layers with a short convolution, "0-1,3-4"; "": none
    int64_t conv_kernel = 0;       // K, kernel size in tokens, the current one included; 0 without conv_layers
    bool conv_bias = false;        // on the convolution and on the projections before and after it
    int64_t max_positions = 1024;  // learned positions of gpt2; an upper bound of seq_len elsewhere
    double norm_eps = 1e-5;
    double rope_theta = 10000;
    RopeScaling rope_scaling;
    bool tie_embeddings = true;  // the head reuses the embedding matrix
    double dropout = 0;          // after the embedding, the attention projection and the MLP projection
    double init_std = 0.02;
    MixtureSpec moe;
    bool operator==(const ModelSpec&) const = default;
};

// The presets with their sizes are the table in presets.cpp. Throws UsageError naming the nearest preset.
ModelSpec preset(const std::string& name);
std::vector<std::string> preset_names();

// The preset, else the last part of the hf directory, else the family.
std::string name_of(const ModelSpec& model);

}  // namespace tutti::spec
