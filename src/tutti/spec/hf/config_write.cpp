// spec/hf/config_write.cpp: ModelSpec to config.json, in the names of transformers 4, which 5 reads too.
#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/spec/hf/classes.h"
#include "tutti/spec/hf/config.h"
#include "tutti/spec/hf/keys.h"
#include "tutti/spec/layers.h"
#include "tutti/spec/variants.h"

namespace tutti::spec {
namespace {

Json gpt2_config(const ModelSpec& m) {
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

// Softmax over all experts, no bias for the choice.
bool routes_plainly(const ModelSpec& m) {
    const MixtureSpec& e = m.moe;
    return e.score == "softmax" && e.scale == 1 && !e.expert_bias && !e.router_bias && !e.bias && e.groups == 1 &&
           !m.mlp_bias;
}

Architecture mixture_of(const ModelSpec& m) {
    const MixtureSpec& e = m.moe;
    const bool plain = routes_plainly(m);
    const bool shared = e.shared_ffn > 0;
    if (plain && m.head_norm && m.qkv_bias == m.output_bias && !shared && m.window_layers.empty())
        return {"qwen3_moe", "Qwen3MoeForCausalLM"};
    if (plain && !m.head_norm && m.qkv_bias && !m.output_bias && shared && e.shared_gate)
        return {"qwen2_moe", "Qwen2MoeForCausalLM"};
    if (is_mixtral(m)) return {"mixtral", "MixtralForCausalLM"};
    throw UsageError(concat("no architecture of transformers has head_norm = ", m.head_norm,
                            ", qkv_bias = ", m.qkv_bias, ", moe.score = ", e.score, ", moe.normalise = ", e.normalise,
                            ", moe.scale = ", e.scale, ", moe.expert_bias = ", e.expert_bias, ", moe.router_bias = ",
                            e.router_bias, ", moe.bias = ", e.bias, ", moe.groups = ", e.groups, ", moe.layers = \"",
                            e.layers, "\", moe.shared_ffn = ", e.shared_ffn, ", moe.shared_gate = ", e.shared_gate,
                            " and window_layers = \"", m.window_layers, "\" together; use --format tutti"));
}

constexpr const char* kNamesNoVariant =
    "this model has options of a row of [model] variant; set variant to the architecture that has them, or use "
    "--format "
    "tutti";

// The architecture of transformers that has exactly these options.
Architecture architecture_of(const ModelSpec& m) {
    // What Llama's own class and its nearest relatives lack; a [model] variant has a row for it.
    ModelSpec plain;
    for (auto field : {&ModelSpec::norm_offset, &ModelSpec::width_norm, &ModelSpec::embedding_sqrt,
                       &ModelSpec::rope_adjacent, &ModelSpec::sinks, &ModelSpec::attention_gate})
        check<UsageError>(m.*field == plain.*field, kNamesNoVariant);
    for (auto field :
         {&ModelSpec::embedding_scale, &ModelSpec::residual_scale, &ModelSpec::logit_divisor, &ModelSpec::logit_cap,
          &ModelSpec::score_scale, &ModelSpec::score_cap, &ModelSpec::window_rope_theta, &ModelSpec::query_growth})
        check<UsageError>(m.*field == plain.*field, kNamesNoVariant);
    check<UsageError>(m.norms == plain.norms && m.gate == plain.gate && m.rope_dims == 0 && m.nope_layers.empty() &&
                          m.delta_layers.empty() && m.kv_latent == 0 && m.rope_scaling.type != "longrope" &&
                          m.rope_scaling.mscale == 0 && m.rope_scaling.mscale_all_dim == 0,
                      kNamesNoVariant);
    if (m.moe.experts > 0) return mixture_of(m);
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

}  // namespace

Json rope_scaling_config(const RopeScaling& s) {
    if (s.factor == 0) return nullptr;
    Json json = {{"rope_type", s.type}, {"factor", s.factor}};
    if (s.type != "linear") json["original_max_position_embeddings"] = s.original_max_positions;
    if (s.type == "llama3") {
        json["low_freq_factor"] = s.low_freq_factor;
        json["high_freq_factor"] = s.high_freq_factor;
    }
    if (s.type == "yarn") {
        json["beta_fast"] = s.beta_fast;
        json["beta_slow"] = s.beta_slow;
        if (s.attention_factor > 0) json["attention_factor"] = s.attention_factor;
        if (!s.truncate) json["truncate"] = false;
        if (s.mscale > 0) json["mscale"] = s.mscale;
        if (s.mscale_all_dim > 0) json["mscale_all_dim"] = s.mscale_all_dim;
    }
    return json;
}

namespace {

void add_experts(const ModelSpec& m, const std::string& type, Json& json) {
    const MixtureSpec& e = m.moe;
    if (type != "mixtral") {
        write_qwen_experts(m, json);
        json["norm_topk_prob"] = e.normalise;
        return;
    }
    json["num_local_experts"] = e.experts;
    json["num_experts_per_tok"] = e.top_k;
    json["output_router_logits"] = e.aux_loss == "all_layers";
    json["router_aux_loss_coef"] = e.aux_coef;
    json["intermediate_size"] = e.ffn;
}

Json llama_config(const ModelSpec& m) {
    const Architecture architecture = architecture_of(m);
    const std::string type = architecture.type;
    Json json = {{"architectures", {architecture.name}}, {"model_type", type}};
    json.update(sizes_config(m));
    json.update(Json{{"hidden_act", "silu"},
                     {"max_position_embeddings", m.max_positions},
                     {"rms_norm_eps", m.norm_eps},
                     {"rope_theta", m.rope_theta},
                     {"rope_scaling", rope_scaling_config(m.rope_scaling)},
                     {"attention_dropout", 0.0}});
    if (m.moe.experts > 0) add_experts(m, type, json);
    if (type == "llama" || type == "qwen3" || type == "qwen3_moe") json["attention_bias"] = m.qkv_bias;
    if (type == "llama") json["mlp_bias"] = m.mlp_bias;
    if (type == "mistral" || type == "mixtral") json["sliding_window"] = m.window > 0 ? Json(m.window) : Json(nullptr);
    if (type.starts_with("qwen")) {
        json["use_sliding_window"] = m.window > 0;
        json["sliding_window"] = m.window > 0 ? Json(m.window) : Json(nullptr);
        // layer_types decides; before transformers 4.53 only max_window_layers did, which says "from here on".
        std::vector<std::string> types;
        for (const LayerSpec& layer : all_layers(m))
            types.emplace_back(layer.attention()->window > 0 ? "sliding_attention" : "full_attention");
        const auto first = std::find(types.begin(), types.end(), "sliding_attention");
        json["max_window_layers"] = first - types.begin();
        if (m.window > 0 && type != "qwen3_moe") json["layer_types"] = types;
    }
    return json;
}

Json lfm2_config(const ModelSpec& m) {
    std::vector<std::string> types;
    for (const LayerSpec& layer : all_layers(m)) types.emplace_back(layer.attention() ? "full_attention" : "conv");
    Json json = {{"architectures", {"Lfm2ForCausalLM"}},
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
    if (m.moe.experts == 0) return json;
    const MixtureSpec& e = m.moe;
    const std::vector<int64_t> layers = layers_with_experts(m);
    check<UsageError>(e.score == "sigmoid" && e.shared_ffn == 0 && e.groups == 1 &&
                          layers.back() - layers.front() + 1 == static_cast<int64_t>(layers.size()) &&
                          layers.back() == m.layers - 1,
                      "no architecture of transformers has short convolutions with moe.score = ", e.score,
                      ", moe.shared_ffn = ", e.shared_ffn, ", moe.groups = ", e.groups, " and moe.layers = \"",
                      e.layers, "\"; use --format tutti");
    json["architectures"] = {"Lfm2MoeForCausalLM"};
    json["model_type"] = "lfm2_moe";
    json.erase("block_auto_adjust_ff_dim");
    json["num_experts"] = e.experts;
    json["num_experts_per_tok"] = e.top_k;
    json["moe_intermediate_size"] = e.ffn;
    json["num_dense_layers"] = layers.front();
    json["norm_topk_prob"] = e.normalise;
    json["routed_scaling_factor"] = e.scale;
    json["use_expert_bias"] = e.expert_bias;
    return json;
}

}  // namespace

bool is_mixtral(const ModelSpec& m) {
    return m.family == Family::llama && m.kv_latent == 0 && m.moe.experts > 0 && routes_plainly(m) && !m.head_norm &&
           !m.qkv_bias && !m.output_bias && m.moe.shared_ffn == 0 && m.moe.normalise && m.moe.layers.empty() &&
           m.window_layers.empty();
}

std::string to_hf_config(const ModelSpec& m, DType dtype) {
    check<UsageError>(traits_of(m).tokens, "an mlp has no Hugging Face architecture; use --format tutti");
    const LaterFiles later = variant_of(m).later;
    check<UsageError>(m.mtp_depth == 0 || later != LaterFiles::none, "[model] mtp_depth = ", m.mtp_depth,
                      ": of the architectures of transformers only those of DeepSeek-V3, Qwen3-Next, Qwen3.5, "
                      "Nemotron 3 and their relatives have files with blocks that predict later tokens; use --format "
                      "tutti");
    check<UsageError>(m.mtp_depth <= 1 || later != LaterFiles::fused, "[model] mtp_depth = ", m.mtp_depth,
                      ": files of ", m.variant, " have one block that predicts a later token; use --format tutti");
    Json json = m.family == Family::gpt2    ? gpt2_config(m)
                : m.family == Family::lfm2  ? lfm2_config(m)
                : m.variant != kAutoVariant ? variant_config(m)
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
