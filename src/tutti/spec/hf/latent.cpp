#include <algorithm>

#include "tutti/spec/hf/classes.h"
#include "tutti/spec/layers.h"

namespace tutti::spec {

namespace {

void read_latents(Keys& keys, ModelSpec& m) {
    m.rope_dims = keys.integer("qk_rope_head_dim");
    m.head_dim = keys.integer("qk_nope_head_dim") + m.rope_dims;
    keys.only("head_dim", {m.rope_dims});  // read by no class
    keys.only("qk_head_dim", {m.head_dim});
    keys.only("num_key_value_heads", {m.heads});
    m.kv_heads = m.heads;
    const int64_t value_dim = keys.integer("v_head_dim");
    m.value_dim = value_dim == m.head_dim ? 0 : value_dim;
    m.kv_latent = keys.integer("kv_lora_rank");
    if (!keys.has("q_lora_rank")) keys.problem("q_lora_rank", "required, a number or null");
    m.q_latent = keys.integer_or("q_lora_rank", 0);
    if (keys.take("quantization_config") != nullptr)
        keys.problem("quantization_config",
                     "this Tutti reads no weights of 8 bits (weight_scale_inv); give a directory in bf16");
    // The layers that predict more tokens are not read; aux_loss_alpha and seq_aux have no effect in transformers.
    for (const char* key : {"num_nextn_predict_layers", "aux_loss_alpha", "seq_aux", "ep_size"}) keys.take(key);
}

void read_routed_experts(Keys& keys, ModelSpec& m, int64_t dense) {
    MixtureSpec& e = m.moe;
    e.experts = keys.integer("n_routed_experts");
    for (const char* key : {"num_experts", "num_local_experts"}) keys.only(key, {e.experts});
    e.top_k = keys.integer("num_experts_per_tok");
    e.ffn = keys.integer("moe_intermediate_size");
    e.shared_ffn = keys.integer("n_shared_experts", 0) * e.ffn;
    e.scale = keys.number("routed_scaling_factor");
    keys.only("moe_layer_freq", {1});
    keys.only("output_router_logits", {false});
    keys.take("router_aux_loss_coef");
    if (dense >= m.layers) keys.problem("first_k_dense_replace", "must be below num_hidden_layers = ", m.layers);
    if (dense > 0 && dense < m.layers) e.layers = to_text({{dense, m.layers - 1}});
}

void read_groups(Keys& keys, MixtureSpec& e, int64_t best) {
    e.groups = keys.integer("n_group");
    e.top_groups = keys.integer("topk_group");
    e.group_best = e.groups > 1 ? best : 0;
}

// The router of DeepSeek-V3: sigmoid, a bias for the choice, groups by their two best.
void read_sigmoid_router(Keys& keys, ModelSpec& m) {
    m.rope_adjacent = keys.boolean_or("rope_interleave", true);
    m.moe.normalise = keys.boolean_or("norm_topk_prob", true);
    read_groups(keys, m.moe, 2);
}

void write_latents(const ModelSpec& m, Json& json) {
    const MixtureSpec& e = m.moe;
    const int64_t rotated = m.rope_dims, value_dim = m.value_dim > 0 ? m.value_dim : m.head_dim;
    const std::vector<int64_t> sparse = layers_with_experts(m);
    const int64_t dense = sparse.empty() ? m.layers : sparse.front();
    json["head_dim"] = rotated;
    json.update(Json{{"qk_nope_head_dim", m.head_dim - rotated},
                     {"qk_rope_head_dim", rotated},
                     {"v_head_dim", value_dim},
                     {"kv_lora_rank", m.kv_latent},
                     {"q_lora_rank", m.q_latent > 0 ? Json(m.q_latent) : Json(nullptr)},
                     {"n_routed_experts", e.experts},
                     {"num_experts_per_tok", e.top_k},
                     {"moe_intermediate_size", e.ffn},
                     {"n_shared_experts", e.ffn > 0 ? e.shared_ffn / e.ffn : 0},
                     {"routed_scaling_factor", e.scale},
                     {"norm_topk_prob", e.normalise},
                     {"first_k_dense_replace", dense},
                     {"n_group", e.groups},
                     {"topk_group", e.top_groups}});
    if (m.mtp_depth > 0) json["num_nextn_predict_layers"] = m.mtp_depth;
}

}  // namespace

void read_deepseek2(Keys& keys, ModelSpec& m) {
    read_latents(keys, m);
    read_routed_experts(keys, m, keys.integer("first_k_dense_replace", 0));
    const Json* method = keys.take("topk_method");
    if (method != nullptr && *method == "group_limited_greedy")
        read_groups(keys, m.moe, 1);
    else if (method == nullptr || *method != "greedy")
        keys.problem("topk_method", "required, greedy or group_limited_greedy");
    for (const char* key : {"n_group", "topk_group"}) keys.take(key);  // greedy reads neither
}

void read_deepseek3(Keys& keys, ModelSpec& m) {
    read_latents(keys, m);
    read_routed_experts(keys, m, keys.integer("first_k_dense_replace", 0));
    read_sigmoid_router(keys, m);
}

// mlp_layer_types: "dense" first, then "sparse"; without the key the first layer is dense.
void read_glm4_moe_lite(Keys& keys, ModelSpec& m) {
    read_latents(keys, m);
    int64_t dense = 1;
    if (const auto is_dense = keys.named("mlp_layer_types", m.layers, "dense", "sparse")) {
        dense = std::ranges::count(*is_dense, true);
        if (std::ranges::find(*is_dense, false) - is_dense->begin() != dense)
            keys.problem("mlp_layer_types", "this Tutti has dense layers before the sparse ones only");
    }
    keys.only("first_k_dense_replace", {dense});
    read_routed_experts(keys, m, dense);
    read_sigmoid_router(keys, m);
}

void write_deepseek2(const ModelSpec& m, Json& json) {
    write_latents(m, json);
    json["topk_method"] = m.moe.groups > 1 ? "group_limited_greedy" : "greedy";
}

void write_deepseek3(const ModelSpec& m, Json& json) {
    write_latents(m, json);
    json["rope_interleave"] = m.rope_adjacent;
    json["topk_method"] = "noaux_tc";
    json["scoring_func"] = "sigmoid";
}

void write_glm4_moe_lite(const ModelSpec& m, Json& json) {
    write_latents(m, json);
    json["rope_interleave"] = m.rope_adjacent;
    json["mlp_layer_types"] = Json::array();
    for (const LayerSpec& layer : all_layers(m))
        json["mlp_layer_types"].push_back(layer.mixture() ? "sparse" : "dense");
}

}  // namespace tutti::spec
