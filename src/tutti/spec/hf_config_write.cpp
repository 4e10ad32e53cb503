// spec/hf_config_write.cpp: ModelSpec to config.json, in the names of transformers 4, which 5 reads too.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/spec/hf_config.h"
#include "tutti/spec/layers.h"

namespace tutti::spec {
namespace {

using HfJson = nlohmann::ordered_json;

HfJson gpt2_config(const ModelSpec& m) {
    return {{"architectures", {"GPT2LMHeadModel"}},
            {"model_type", "gpt2"},
            {"vocab_size", m.vocab},
            {"n_embd", m.width},
            {"n_layer", m.layers},
            {"n_head", m.heads},
            {"n_positions", m.max_positions},
            {"n_inner", m.ffn},
            {"activation_function", "gelu_new"},
            {"layer_norm_epsilon", m.norm_eps},
            {"embd_pdrop", m.dropout},
            {"resid_pdrop", m.dropout},
            {"attn_pdrop", 0.0}};
}

struct Architecture {
    const char* type;
    const char* name;
};

// The architecture of transformers that has exactly these options.
Architecture architecture_of(const ModelSpec& m) {
    if (m.head_norm && m.qkv_bias == m.output_bias && !m.mlp_bias) return {"qwen3", "Qwen3ForCausalLM"};
    if (!m.head_norm && m.qkv_bias && !m.output_bias && !m.mlp_bias) return {"qwen2", "Qwen2ForCausalLM"};
    const bool some_layers = !m.window_layers.empty();  // Qwen's only
    if (!m.head_norm && m.window > 0 && !some_layers && !m.qkv_bias && !m.output_bias && !m.mlp_bias)
        return {"mistral", "MistralForCausalLM"};
    if (!m.head_norm && m.window == 0 && m.qkv_bias == m.output_bias) return {"llama", "LlamaForCausalLM"};
    throw UsageError(concat("no architecture of transformers has head_norm = ", m.head_norm,
                            ", qkv_bias = ", m.qkv_bias, ", output_bias = ", m.output_bias, ", mlp_bias = ", m.mlp_bias,
                            ", window = ", m.window, " and window_layers = \"", m.window_layers,
                            "\" together; use --format tutti"));
}

HfJson rope_scaling_config(const RopeScaling& s) {
    if (s.factor == 0) return nullptr;
    HfJson json = {{"rope_type", s.type}, {"factor", s.factor}};
    if (s.type != "linear") json["original_max_position_embeddings"] = s.original_max_positions;
    if (s.type == "llama3") {
        json["low_freq_factor"] = s.low_freq_factor;
        json["high_freq_factor"] = s.high_freq_factor;
    }
    if (s.type == "yarn") {
        json["beta_fast"] = s.beta_fast;
        json["beta_slow"] = s.beta_slow;
        if (s.attention_factor > 0) json["attention_factor"] = s.attention_factor;
    }
    return json;
}

HfJson llama_config(const ModelSpec& m) {
    const Architecture architecture = architecture_of(m);
    const std::string type = architecture.type;
    HfJson json = {{"architectures", {architecture.name}},
                   {"model_type", type},
                   {"vocab_size", m.vocab},
                   {"hidden_size", m.width},
                   {"intermediate_size", m.ffn},
                   {"num_hidden_layers", m.layers},
                   {"num_attention_heads", m.heads},
                   {"num_key_value_heads", m.kv_heads},
                   {"head_dim", m.head_dim},
                   {"hidden_act", "silu"},
                   {"max_position_embeddings", m.max_positions},
                   {"rms_norm_eps", m.norm_eps},
                   {"rope_theta", m.rope_theta},
                   {"rope_scaling", rope_scaling_config(m.rope_scaling)},
                   {"attention_dropout", 0.0}};
    if (type == "llama" || type == "qwen3") json["attention_bias"] = m.qkv_bias;
    if (type == "llama") json["mlp_bias"] = m.mlp_bias;
    if (type == "mistral") json["sliding_window"] = m.window;
    if (type == "qwen2" || type == "qwen3") {
        json["use_sliding_window"] = m.window > 0;
        json["sliding_window"] = m.window > 0 ? HfJson(m.window) : HfJson(nullptr);
        // layer_types decides; before transformers 4.53 only max_window_layers did, which says "from here on".
        std::vector<std::string> types;
        for (int64_t i = 0; i < m.layers; ++i)
            types.emplace_back(operator_of(m, i).window > 0 ? "sliding_attention" : "full_attention");
        const auto first = std::find(types.begin(), types.end(), "sliding_attention");
        json["max_window_layers"] = first - types.begin();
        if (!m.window_layers.empty()) json["layer_types"] = types;
    }
    return json;
}

HfJson lfm2_config(const ModelSpec& m) {
    std::vector<std::string> types;
    for (int64_t i = 0; i < m.layers; ++i)
        types.emplace_back(operator_of(m, i).kind == LayerOperator::Kind::attention ? "full_attention" : "conv");
    HfJson json = {{"architectures", {"Lfm2ForCausalLM"}},
                   {"model_type", "lfm2"},
                   {"vocab_size", m.vocab},
                   {"hidden_size", m.width},
                   {"intermediate_size", m.ffn},
                   {"block_auto_adjust_ff_dim", false},  // intermediate_size is what it is
                   {"num_hidden_layers", m.layers},
                   {"num_attention_heads", m.heads},
                   {"num_key_value_heads", m.kv_heads},
                   {"layer_types", types},
                   {"conv_L_cache", m.conv_kernel > 0 ? m.conv_kernel : 3},
                   {"conv_bias", m.conv_bias},
                   {"max_position_embeddings", m.max_positions},
                   {"norm_eps", m.norm_eps},
                   {"rope_theta", m.rope_theta},
                   {"rope_scaling", rope_scaling_config(m.rope_scaling)}};
    if (m.heads * m.head_dim != m.width) json["head_dim"] = m.head_dim;
    return json;
}

}  // namespace

std::string to_hf_config(const ModelSpec& m, DType dtype) {
    check<UsageError>(m.family != Family::mlp, "an mlp has no Hugging Face architecture; use --format tutti");
    HfJson json = m.family == Family::gpt2   ? gpt2_config(m)
                  : m.family == Family::lfm2 ? lfm2_config(m)
                                             : llama_config(m);
    json["initializer_range"] = m.init_std;
    json["tie_word_embeddings"] = m.tie_embeddings;
    // Not the defaults of the classes: they are ids of published vocabularies.
    for (const char* token : {"bos_token_id", "eos_token_id", "pad_token_id"}) json[token] = nullptr;
    json["use_cache"] = true;
    json["torch_dtype"] = hf_dtype(dtype);
    return json.dump(2) + "\n";
}

}  // namespace tutti::spec
