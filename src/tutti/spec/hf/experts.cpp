#include <algorithm>
#include <set>

#include "tutti/base/to_size.h"
#include "tutti/spec/hf/classes.h"
#include "tutti/spec/layers.h"

namespace tutti::spec {

namespace {

// The layers with experts of a Qwen: every decoder_sparse_step-th, but for those of mlp_only_layers.
std::string read_expert_layers(Keys& keys, int64_t layers) {
    const int64_t step = keys.integer_or("decoder_sparse_step", 1);
    std::set<int64_t> dense;
    if (const Json* only = keys.take("mlp_only_layers")) {
        const auto is_layer = [&](const Json& layer) { return layer.is_integer(0, layers - 1); };
        if (!only->is_array() || !std::all_of(only->begin(), only->end(), is_layer))
            keys.problem("mlp_only_layers", "must be a list of layers from 0 to ", layers - 1);
        else
            for (const Json& layer : *only) dense.insert(layer.get<int64_t>());
    }
    std::vector<bool> has_experts(to_size(layers));
    for (int64_t layer = 0; layer < layers; ++layer)
        has_experts[to_size(layer)] = !dense.contains(layer) && (layer + 1) % step == 0;
    const std::vector<LayerRange> sparse = layer_ranges(has_experts);
    if (sparse.empty())
        keys.problem("mlp_only_layers", "no layer is left to have experts; a dense model has another model_type");
    return sparse == std::vector<LayerRange>{{0, layers - 1}} ? "" : to_text(sparse);
}

}  // namespace

void read_expert_count(Keys& keys, MixtureSpec& e) {
    // transformers 5 writes either name for either architecture.
    e.experts = keys.has("num_local_experts") ? keys.integer("num_local_experts") : keys.integer("num_experts");
    keys.only("num_experts", {e.experts});
    e.top_k = keys.integer("num_experts_per_tok");
    if (e.top_k > e.experts) keys.problem("num_experts_per_tok", "must be at most the number of experts, ", e.experts);
}

void read_qwen_experts(Keys& keys, ModelSpec& m, bool shared) {
    MixtureSpec& e = m.moe;
    read_expert_count(keys, e);
    read_router_loss(keys, e, 0.001);
    e.ffn = keys.integer("moe_intermediate_size");
    e.layers = read_expert_layers(keys, m.layers);
    if (!shared) return;
    e.shared_ffn = keys.integer("shared_expert_intermediate_size");
    e.shared_gate = true;
}

void write_qwen_experts(const ModelSpec& m, Json& json) {
    const MixtureSpec& e = m.moe;
    json.update(Json{{"num_experts", e.experts},
                     {"num_experts_per_tok", e.top_k},
                     {"output_router_logits", e.aux_loss == "all_layers"},
                     {"router_aux_loss_coef", e.aux_coef},
                     {"moe_intermediate_size", e.ffn},
                     {"decoder_sparse_step", 1},
                     {"mlp_only_layers", Json::array()}});
    for (int64_t i = 0; i < m.layers; ++i)
        if (!layer(m, i).mixture()) json["mlp_only_layers"].push_back(i);
    if (e.shared_ffn > 0) json["shared_expert_intermediate_size"] = e.shared_ffn;
}

// All layers have experts, as wide as intermediate_size. Some keys are there twice.
void read_gpt_oss(Keys& keys, ModelSpec& m) {
    MixtureSpec& e = m.moe;
    e.experts = keys.integer("num_local_experts");
    e.top_k = keys.integer("num_experts_per_tok");
    if (e.top_k > e.experts) keys.problem("num_experts_per_tok", "must be at most num_local_experts = ", e.experts);
    e.ffn = m.ffn;
    m.gate_limit = keys.number_or("swiglu_limit", 7);
    if (m.gate_limit == 0) keys.problem("swiglu_limit", "must be above 0");
    keys.only("swiglu_alpha", {1.702});
    keys.only("num_experts", {e.experts});
    keys.only("experts_per_token", {e.top_k});
    if (m.rope_scaling.factor > 0) keys.only("initial_context_length", {m.rope_scaling.original_max_positions});
    read_router_loss(keys, e, 0.9);
    if (const Json* stored = keys.take("quantization_config")) {
        const Json* method = stored->is_object() ? stored->find("quant_method") : nullptr;
        if (method == nullptr || *method != "mxfp4")
            keys.problem("quantization_config", "this Tutti reads experts in mxfp4, and weights in f32, bf16 or f16");
    }
}
void write_gpt_oss(const ModelSpec& m, Json& json) {
    const MixtureSpec& e = m.moe;
    json["intermediate_size"] = e.ffn;
    json["num_local_experts"] = e.experts;
    json["num_experts_per_tok"] = e.top_k;
    json["swiglu_limit"] = m.gate_limit;
    if (m.rope_scaling.factor == 0) {  // the class makes YaRN of a file without the object
        json["rope_parameters"] = Json{{"rope_type", "default"}, {"rope_theta", m.rope_theta}};
        for (const char* key : {"rope_scaling", "rope_theta"}) json.erase(key);
    }
    json["output_router_logits"] = e.aux_loss == "all_layers";
    json["router_aux_loss_coef"] = e.aux_coef;
}

}  // namespace tutti::spec
