// spec/model_spec.h: a model as plain data, before any tensor exists. Planner, model builder and converter read it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::spec {

// gpt2: learned positions, LayerNorm, biases, tanh GELU. llama: RoPE, RMSNorm, SwiGLU, grouped-query attention, no
// biases. mlp: `layers` times a bias-free Linear width -> width and a ReLU, squared error; it has no vocabulary.
enum class Family { gpt2, llama, mlp };
std::string_view name_of(Family family);  // "llama"

// Llama 3.1's change of the RoPE frequencies for long contexts; factor 0 means off.
struct RopeScaling {
    double factor = 0;
    double low_freq_factor = 1;
    double high_freq_factor = 4;
    int64_t original_max_positions = 8192;
    bool operator==(const RopeScaling&) const = default;
};

// A field that the family has no use for is 0 (and validate() keeps it so): nothing that is asked for is ignored.
struct ModelSpec {
    std::string preset = "llama-tiny";  // where the fields below started from; "" when all are given
    Family family = Family::llama;
    int64_t vocab = 256;
    int64_t width = 128;           // C; for mlp the D of the lecture's example
    int64_t layers = 4;            // L
    int64_t heads = 4;             // H
    int64_t kv_heads = 4;          // grouped-query attention when fewer than heads
    int64_t head_dim = 32;         // D
    int64_t ffn = 448;             // F
    int64_t max_positions = 1024;  // learned positions of gpt2; an upper bound of seq_len elsewhere
    double norm_eps = 1e-5;
    double rope_theta = 10000;
    RopeScaling rope_scaling;
    bool tie_embeddings = true;  // the head reuses the embedding matrix
    double dropout = 0;          // after the embedding, the attention projection and the MLP projection
    double init_std = 0.02;
    bool operator==(const ModelSpec&) const = default;
};

// The presets with their sizes are the table in presets.cpp: llama-tiny, llama-5m, llama-20m, llama-110m, gpt2-124m,
// gpt2-xl, llama3.2-1b, llama3-8b, llama3-70b, llama3-405b, mlp-8192. Throws UsageError naming the nearest preset.
ModelSpec preset(const std::string& name);
std::vector<std::string> preset_names();

// Exact number of trainable values; a tied matrix counts once.
int64_t parameter_count(const ModelSpec& model);

}  // namespace tutti::spec
