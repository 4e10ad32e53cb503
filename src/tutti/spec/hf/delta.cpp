#include "tutti/base/to_size.h"
#include "tutti/spec/hf/classes.h"
#include "tutti/spec/layers.h"

namespace tutti::spec {

void read_delta_rule(Keys& keys, ModelSpec& m) {
    const auto linear = keys.named("layer_types", m.layers, "linear_attention", "full_attention");
    const int64_t interval = keys.integer_or("full_attention_interval", 4);  // not read beside layer_types
    std::vector<bool> with;
    for (int64_t i = 0; i < m.layers; ++i) with.push_back(linear ? (*linear)[to_size(i)] : (i + 1) % interval != 0);
    m.delta_layers = to_text(layer_ranges(with));
    // Defaults as in the classes, whose files have the keys.
    const int64_t kernel = keys.integer_or("linear_conv_kernel_dim", 4);
    const int64_t key_heads = keys.integer_or("linear_num_key_heads", 16);
    const int64_t value_heads = keys.integer_or("linear_num_value_heads", 32);
    const int64_t key_dim = keys.integer_or("linear_key_head_dim", 128);
    const int64_t value_dim = keys.integer_or("linear_value_head_dim", 128);
    // Multi-token prediction, which the classes do not read, and the type of states, which is f32.
    for (const char* key : {"mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "num_nextn_predict_layers"})
        keys.take(key);
    keys.only("mamba_ssm_dtype", {"float32"});
    if (m.delta_layers.empty()) return;
    m.conv_kernel = kernel;
    m.delta_key_heads = key_heads;
    m.delta_value_heads = value_heads;
    m.delta_key_dim = key_dim;
    m.delta_value_dim = value_dim;
}

void write_delta_rule(const ModelSpec& m, Json& json) {
    const int64_t dims = m.rope_dims > 0 ? m.rope_dims : m.head_dim;
    json["partial_rotary_factor"] = static_cast<double>(dims) / static_cast<double>(m.head_dim);
    json["layer_types"] = Json::array();
    for (const LayerSpec& layer : all_layers(m))
        json["layer_types"].push_back(layer.delta() ? "linear_attention" : "full_attention");
    json["mtp_num_hidden_layers"] = m.mtp_depth;  // none where it is 0; without the key readers take 1
    if (m.delta_layers.empty()) return;
    json.update(Json{{"linear_conv_kernel_dim", m.conv_kernel},
                     {"linear_num_key_heads", m.delta_key_heads},
                     {"linear_num_value_heads", m.delta_value_heads},
                     {"linear_key_head_dim", m.delta_key_dim},
                     {"linear_value_head_dim", m.delta_value_dim}});
}

void read_qwen3_next(Keys& keys, ModelSpec& m) {
    read_delta_rule(keys, m);
    read_qwen_experts(keys, m, true);
    m.moe.normalise = keys.boolean_or("norm_topk_prob", true);
}

void write_qwen3_next(const ModelSpec& m, Json& json) {
    write_delta_rule(m, json);
    write_qwen_experts(m, json);
    json["norm_topk_prob"] = m.moe.normalise;
}

// All layers have experts, whose weights always sum to 1: the class has no key for either.
void read_qwen3_5_moe(Keys& keys, ModelSpec& m) {
    read_delta_rule(keys, m);
    read_qwen_experts(keys, m, true);
    if (!m.moe.layers.empty())
        keys.problem("mlp_only_layers", "the class does not read it, nor decoder_sparse_step; leave both out");
}

void write_qwen3_5_moe(const ModelSpec& m, Json& json) {
    write_delta_rule(m, json);
    write_qwen_experts(m, json);
    for (const char* key : {"decoder_sparse_step", "mlp_only_layers"}) json.erase(key);
}

}  // namespace tutti::spec
