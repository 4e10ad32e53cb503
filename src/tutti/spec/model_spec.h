// spec/model_spec.h: a model as plain data, before any tensor exists.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::spec {

// gpt2: learned positions, LayerNorm, biases, tanh GELU. llama: RoPE, RMSNorm, SwiGLU, grouped-query attention; with
// the fields below also Mistral (window), Qwen2 (qkv_bias), Qwen3 (head_norm), their mixtures of experts (moe), and the
// rows of spec/variants.h: Gemma, OLMo, Granite, GLM, Phi, ...
// lfm2: the same with head_norm, and in some layers a gated short convolution in place of attention; with moe LFM2-MoE.
// mlp: `layers` times a bias-free Linear width -> width and a ReLU, squared error; it has no vocabulary.
enum class Family { gpt2, llama, lfm2, mlp };
inline constexpr Family kFamilies[] = {Family::gpt2, Family::llama, Family::lfm2, Family::mlp};
std::string_view name_of(Family family);  // "llama"

// A change of the RoPE frequencies for contexts beyond the original ones; factor 0 means off. llama3: Llama 3.1 to 3.3.
struct RopeScaling {
    std::string type = "llama3";  // llama3 | linear | yarn | longrope
    double factor = 0;            // longrope: of the context only, for attention_factor
    double low_freq_factor = 1;   // llama3
    double high_freq_factor = 4;  // llama3
    double beta_fast = 32;        // yarn
    double beta_slow = 1;         // yarn
    double attention_factor = 0;  // yarn, longrope: multiplies cosines and sines; 0: by the factor
    bool truncate = true;         // yarn: the borders between kept and divided frequencies are whole pairs
    double mscale = 0;            // yarn: with m(x) = 0.1 x ln(factor) + 1, cosines and sines times m(mscale) /
    double mscale_all_dim = 0;    // m(mscale_all_dim), latent attention's scores times m(mscale_all_dim)^2
    int64_t original_max_positions = 8192;  // llama3, yarn, longrope
    std::string short_factors;              // longrope, of each frequency, "1,1.25": runs up to the original context,
    std::string long_factors;               // and longer runs
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
    bool router_bias = false;       // of the logits, trained like a weight (gpt-oss)
    bool bias = false;              // on the three projections of each expert (gpt-oss)
    int64_t groups = 1;             // of experts; those of a token are in top_groups groups (DeepSeek)
    int64_t top_groups = 1;
    int64_t latent = 0;          // experts work on so many channels, a projection of their input; 0: all (Nemotron 3)
    int64_t group_best = 0;      // a group is chosen by the sum of so many of its best scores; 0: top_k / top_groups
    double capacity_factor = 0;  // an expert accepts factor * T k / E choices of a microbatch; 0: all
    std::string drop = "probability";  // probability | position: the choices accepted first
    // A loss that balances the loads: over the tokens of a microbatch, of a sequence, of the ranks and microbatches of
    // a step so far (global), or over a microbatch and all layers together, as in transformers.
    std::string aux_loss = "none";  // none | microbatch | sequence | global | all_layers
    double aux_coef = 0;
    double z_coef = 0;   // of the mean squared ln sum exp(logits) (Zoph et al. 2022)
    double epsilon = 0;  // no key: of the family (FamilyTraits), in the divisor of normalised weights
    bool operator==(const MixtureSpec&) const = default;
};

// A field that the family does not use must be 0; validate() refuses any other value, so no request is ignored.
struct ModelSpec {
    std::string preset = "llama-tiny";  // source of the fields below; "" when all are given or from hf
    std::string hf;                     // directory of a Hugging Face model: missing fields and initial weights
    Family family = Family::llama;
    int64_t vocab = 256;
    int64_t width = 128;    // C; for mlp D
    int64_t layers = 4;     // L
    int64_t heads = 4;      // H
    int64_t kv_heads = 4;   // grouped-query attention when fewer than heads
    int64_t head_dim = 32;  // D; heads * head_dim may differ from width, but not for gpt2
    // Latent attention (DeepSeek-V2): a latent of kv_latent channels gives each head its values and all channels of its
    // key but the last rope_dims, which are one rotated key of all heads.
    int64_t kv_latent = 0;      // 0: none
    int64_t q_latent = 0;       // queries are made from a latent, too; 0: from the input
    int64_t value_dim = 0;      // Dv, of a head; 0: head_dim
    int64_t ffn = 448;          // F
    bool qkv_bias = false;      // on the query, key and value projections (Qwen2); gpt2 has all biases anyway
    bool output_bias = false;   // on attention's output projection
    bool mlp_bias = false;      // on the three projections of the MLP
    bool head_norm = false;     // RMSNorm of each query and key head before RoPE (Qwen3, lfm2)
    int64_t window = 0;         // newest keys that a query attends to, its own included (Mistral); 0: all
    std::string window_layers;  // layers with the window, "0,2-5"; "": all (spec/layers.h)
    std::string variant =
        "auto";                 // whose names and config.json files have: a row of spec/variants.h; auto: by the fields
    std::string norms = "pre";  // pre | post | sandwich: RMS norms before the parts of a block, behind them, both
    bool norm_offset = false;   // weights of norms are stored less 1 (Gemma)
    bool width_norm = false;    // RMSNorm of all queries, and of all keys, of a token together (OLMo 2)
    std::string gate = "silu";  // silu | gelu | clamped: gated unit of MLP and experts (kernels::Gate); gelu by tanh;
                                // relu2: the square of ReLU, without a gate (Nemotron-H)
    double gate_limit = 0;      // of clamped (gpt-oss)
    bool sinks = false;  // a trained score of each head that takes part in its softmax, without a value (gpt-oss)
    bool embedding_sqrt = false;   // embeddings times sqrt(width), rounded to the compute type (Gemma)
    double embedding_scale = 0;    // embeddings times this; 0: as they are (Granite; so are the next two)
    double residual_scale = 0;     // what a part adds to the residual stream, times this; 0: as it is
    double logit_divisor = 0;      // logits divided by this; 0: as they are
    double logit_cap = 0;          // c: logits c tanh(z / c); 0: none (Gemma 2)
    double score_scale = 0;        // of attention scores q.k; 0: head_dim^(-1/2)
    double score_cap = 0;          // c: scores c tanh(s / c); 0: none (Gemma 2)
    int64_t rope_dims = 0;         // channels of a head that are rotated, the first ones; 0: all (Phi-3, GLM)
    bool rope_adjacent = false;    // rotates channels (2k, 2k + 1), not the halves (GLM)
    std::string nope_layers;       // layers without RoPE, "3,7"; "": none (SmolLM3)
    double window_rope_theta = 0;  // rope_theta of layers with the window, unscaled; 0: as in the others (Gemma 3)
    double query_growth = 0;  // b: queries times 1 + b ln(1 + floor(position / original_max_positions)) (Ministral 3)
    std::string conv_layers;  // lfm2: layers with a short convolution, "0-1,3-4"; "": none
    int64_t conv_kernel = 0;  // K, kernel size in tokens, the current one included; 0 where no layer has a convolution
    bool conv_bias = false;   // on the convolution, of lfm2 also on the projections before and after it
    // Gated delta rule (Qwen3-Next): linear attention with a state of each value head in place of attention.
    std::string delta_layers;     // layers with it, "0-2,4-6"; "": none, and the next four are 0
    int64_t delta_key_heads = 0;  // of queries and keys; divides delta_value_heads
    int64_t delta_value_heads = 0;
    int64_t delta_key_dim = 0;  // of a head
    int64_t delta_value_dim = 0;
    // The scan of Mamba-2: linear attention with a state of each head, in place of attention.
    std::string scan_layers;    // layers with it, "0-4,6"; "": none but those of `pattern`
    bool scan_beside = false;   // these layers have attention, too, and add both (Falcon-H1)
    int64_t scan_heads = 0;     // 0 without such layers, like the next three
    int64_t scan_head_dim = 0;  // P
    int64_t scan_groups = 0;    // of heads that share B and C; divides scan_heads
    int64_t scan_state = 0;     // N, channels of B and C
    double scan_step_min = 0;   // bounds of a token's step; 0: none
    double scan_step_max = 0;
    std::string scan_norm = "gated";  // gated | before_gate | none: RMS norm of each group of o silu(z), or of o
    // A letter for each layer, which is that part alone behind one norm (Nemotron-H): M scan, * attention, - MLP, E
    // experts; "": all layers have a mixer and an MLP or experts.
    std::string pattern;
    std::string multipliers;       // "1,0.5,...", numbers of spec::Multipliers (Falcon-H1); "": all 1
    bool attention_gate = false;   // attention's output times the sigmoid of a projection of its input (Qwen3-Next)
    int64_t max_positions = 1024;  // learned positions of gpt2; an upper bound of seq_len elsewhere
    double norm_eps = 1e-5;
    double rope_theta = 10000;
    RopeScaling rope_scaling;
    bool tie_embeddings = true;  // the head reuses the embedding matrix
    // Multi-token prediction (DeepSeek-V3): each of mtp_depth blocks behind the last one predicts one token further
    // ahead, and mtp_weight / mtp_depth times the sum of their losses is trained with the loss.
    int64_t mtp_depth = 0;
    double mtp_weight = 0;
    double dropout = 0;  // after the embedding, the attention projection and the MLP projection
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
