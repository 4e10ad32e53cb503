// spec/hf/config.cpp: config.json to ModelSpec. Each key that is read is removed; the remaining keys must be harmless.
#include "tutti/spec/hf/config.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "tutti/base/ceil_div.h"
#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/read_file.h"
#include "tutti/base/to_size.h"
#include "tutti/spec/hf/classes.h"
#include "tutti/spec/hf/keys.h"
#include "tutti/spec/layers.h"
#include "tutti/spec/nearest.h"
#include "tutti/spec/validate.h"
#include "tutti/spec/variants.h"

namespace tutti::spec {
namespace {

void read_gpt2(Keys& keys, ModelSpec& m) {
    m = preset("gpt2-124m");
    m.width = keys.integer("n_embd");
    m.layers = keys.integer("n_layer");
    m.heads = m.kv_heads = keys.integer("n_head");
    m.max_positions = keys.integer("n_positions");
    m.ffn = keys.integer_or("n_inner", 4 * m.width);
    m.norm_eps = keys.number("layer_norm_epsilon");
    if (m.width % m.heads != 0) keys.problem("n_head", "must divide n_embd = ", m.width);
    m.head_dim = m.width / m.heads;
    m.tie_embeddings = keys.boolean_or("tie_word_embeddings", true);
    keys.only("n_ctx", {m.max_positions});
    keys.only("activation_function", {"gelu_new", "gelu_pytorch_tanh"});
    keys.only("scale_attn_weights", {true});
    keys.only("scale_attn_by_inverse_layer_idx", {false});
}

// Which layers look back over a window. All of Mistral's; Qwen has a switch, and the layers that layer_types names,
// else by max_window_layers: those from it on, of Qwen2-MoE every other one below it. The class of Qwen3-MoE reads
// neither.
void read_window(Keys& keys, ModelSpec& m, const std::string& type) {
    const bool qwen = type.starts_with("qwen");
    const bool has = type == "mistral" || type == "mixtral" || (qwen && keys.boolean_or("use_sliding_window", false));
    // MistralConfig's own default is 4096, and that of Qwen; null is none.
    const Json* given = has || qwen ? keys.take("sliding_window") : nullptr;
    const bool absent = has && type != "mixtral" && !keys.has("sliding_window");
    const int64_t window = has && (given != nullptr || absent) ? keys.integer_or("sliding_window", 4096) : 0;
    const int64_t first = qwen ? keys.integer_or("max_window_layers", 28, 0) : 0;
    const bool everywhere = !qwen || type == "qwen3_moe";
    std::vector<bool> looks_back(to_size(m.layers));
    for (int64_t i = 0; i < m.layers; ++i)
        looks_back[to_size(i)] =
            window > 0 && (everywhere || (type == "qwen2_moe" ? i % 2 == 0 && i < first : i >= first));
    std::vector<LayerRange> sliding = layer_ranges(looks_back);
    if (const auto slides = keys.named("layer_types", m.layers, "sliding_attention", "full_attention")) {
        const bool fixed = everywhere && !sliding.empty();  // transformers ignores the key
        sliding = layer_ranges(*slides);
        if (!sliding.empty() && window == 0)
            keys.problem("layer_types", "there is no window: ", qwen ? "use_sliding_window or " : "",
                         "sliding_window says so");
        if (fixed && sliding != std::vector<LayerRange>{{0, m.layers - 1}})
            keys.problem("layer_types", "the window of a ", type, " is in all layers");
    }
    if (sliding.empty()) return;
    m.window = window;
    if (sliding != std::vector<LayerRange>{{0, m.layers - 1}}) m.window_layers = to_text(sliding);
}

void read_experts(Keys& keys, ModelSpec& m, const std::string& type) {
    MixtureSpec& e = m.moe;
    if (type == "mixtral") {
        read_expert_count(keys, e);
        read_router_loss(keys, e, 0.001);
        keys.only("router_jitter_noise", {0.0});
        e.ffn = m.ffn;
        return;
    }
    read_qwen_experts(keys, m, type != "qwen3_moe");
    e.normalise = keys.boolean_or("norm_topk_prob", false);
}

void read_llama(Keys& keys, ModelSpec& m, const std::string& type, const std::string& path,
                std::vector<std::string>& problems) {
    const bool qwen3 = type == "qwen3" || type == "qwen3_moe", qwen2 = type == "qwen2" || type == "qwen2_moe";
    read_sizes(keys, m, qwen3 ? 128 : 0);
    m.tie_embeddings = keys.boolean_or("tie_word_embeddings", false);
    keys.only("hidden_act", {"silu", "swish"});
    m.head_norm = qwen3;
    m.qkv_bias = qwen2;
    if (type == "qwen2_moe") keys.only("qkv_bias", {true});
    if (type == "llama" || qwen3) m.qkv_bias = m.output_bias = keys.boolean_or("attention_bias", false);
    if (type == "llama") m.mlp_bias = keys.boolean_or("mlp_bias", false);
    if (type == "mixtral" || type.ends_with("_moe")) read_experts(keys, m, type);
    read_window(keys, m, type);
    // The defaults of absent keys are those of each class of transformers.
    read_rope(keys, m, {.theta = type == "mixtral" ? 1000000.0 : 10000.0, .partial = 0}, path, problems);
}

// int(multiplier * int(2 ff / 3)), rounded up to a multiple, as the class of transformers does; or ff as it stands.
int64_t lfm2_ffn(Keys& keys) {
    const char* key = keys.has("block_ff_dim") ? "block_ff_dim" : "intermediate_size";  // the older name
    int64_t ffn = keys.integer(key);
    if (keys.integer_or("intermediate_size", ffn) != ffn)
        keys.problem("intermediate_size", "differs from block_ff_dim = ", ffn, ", another name for the same");
    const bool adjusted = keys.boolean_or("block_auto_adjust_ff_dim", true);
    const bool whole = keys.has("block_ffn_dim_multiplier") && keys.take("block_ffn_dim_multiplier") == nullptr;
    const double multiplier = keys.number_or("block_ffn_dim_multiplier", 1);
    const int64_t unit = keys.integer_or("block_multiple_of", 256);
    if (!adjusted) return ffn;
    ffn = 2 * ffn / 3;
    if (whole) return ffn;
    const double scaled = multiplier * static_cast<double>(ffn);
    if (scaled < 1 || scaled > std::numeric_limits<int32_t>::max()) {
        keys.problem("block_ffn_dim_multiplier", "makes a feed-forward of ", scaled, " channels");
        return ffn;
    }
    return round_up(static_cast<int64_t>(scaled), unit);
}

// The layers with a convolution: the others of layer_types, or of full_attn_idxs; with neither key there are none.
std::vector<LayerRange> lfm2_convolutions(Keys& keys, int64_t layers) {
    std::vector<bool> attention(to_size(layers), true);
    const auto named = keys.named("layer_types", layers, "full_attention", "conv");
    const Json* indices = keys.take("full_attn_idxs");
    if (indices != nullptr) {
        attention.assign(attention.size(), false);
        for (const Json& index : indices->is_array() ? *indices : Json::array({nullptr})) {
            if (!index.is_integer(0, layers - 1)) {
                keys.problem("full_attn_idxs", "must be a list of layers below num_hidden_layers = ", layers);
                break;
            }
            attention[index.get<size_t>()] = true;
        }
    }
    if (named && indices != nullptr && *named != attention)
        keys.problem("layer_types", "differs from full_attn_idxs = ", indices->dump(), ", which has the same meaning");
    if (named) attention = *named;
    attention.flip();
    return layer_ranges(attention);
}

void read_lfm2_experts(Keys& keys, ModelSpec& m) {
    MixtureSpec& e = m.moe;
    read_expert_count(keys, e);
    e.ffn = keys.integer("moe_intermediate_size");
    e.score = "sigmoid";
    e.normalise = keys.boolean_or("norm_topk_prob", true);
    e.scale = keys.number_or("routed_scaling_factor", 1);
    e.expert_bias = keys.boolean_or("use_expert_bias", true);
    const int64_t dense = keys.integer_or("num_dense_layers", 2, 0);
    if (dense >= m.layers) keys.problem("num_dense_layers", "must be below num_hidden_layers = ", m.layers);
    if (dense > 0) e.layers = to_text({{std::min(dense, m.layers - 1), m.layers - 1}});
    keys.take("output_router_logits");  // it shows the logits; the architecture has no balancing loss
}

void read_lfm2(Keys& keys, ModelSpec& m, const std::string& type, const std::string& path,
               std::vector<std::string>& problems) {
    m.family = Family::lfm2;
    m.width = keys.integer("hidden_size");
    m.layers = keys.integer("num_hidden_layers");
    m.heads = keys.integer("num_attention_heads");
    m.kv_heads = keys.integer("num_key_value_heads");
    m.max_positions = keys.integer_or("max_position_embeddings", 128000);
    m.norm_eps = keys.number_or("norm_eps", 1e-5);
    if (keys.take("head_dim") == nullptr && m.width % m.heads != 0)
        keys.problem("num_attention_heads", "must divide hidden_size = ", m.width, ", where there is no head_dim");
    m.head_dim = keys.integer_or("head_dim", m.width / m.heads);
    m.head_norm = true;
    m.ffn = type == "lfm2_moe" ? keys.integer("intermediate_size") : lfm2_ffn(keys);
    if (type == "lfm2_moe") read_lfm2_experts(keys, m);
    m.conv_layers = to_text(lfm2_convolutions(keys, m.layers));
    const int64_t kernel = keys.integer_or("conv_L_cache", 3);
    const bool bias = keys.boolean_or("conv_bias", false);
    if (!m.conv_layers.empty()) {
        m.conv_kernel = kernel;
        m.conv_bias = bias;
    }
    const bool tied = keys.boolean_or("tie_word_embeddings", true);
    m.tie_embeddings = keys.boolean_or("tie_embedding", tied);
    if (keys.has("tie_word_embeddings") && tied != m.tie_embeddings)
        keys.problem("tie_embedding", "differs from tie_word_embeddings = ", tied ? "true" : "false",
                     ", another name for the same");
    read_rope(keys, m, {.theta = keys.number_or("theta", 1000000), .partial = 0}, path, problems);
    // Older names of the same keys, and keys about the initial weights.
    for (const char* name : {"theta", "rope_theta"}) keys.only(name, {m.rope_theta});
    for (const char* name : {"block_dim", "conv_dim", "conv_dim_out"}) keys.only(name, {m.width});
    keys.only("num_heads", {m.heads});
    keys.only("block_norm_eps", {m.norm_eps});
    keys.only("block_use_swiglu", {true});
    keys.only("use_pos_enc", {true});
    keys.only("hidden_act", {"silu", "swish"});
    for (const char* name :
         {"block_mlp_init_scale", "block_out_init_scale", "block_use_xavier_init", "conv_use_xavier_init"})
        keys.take(name);
}

// DataError for a model_type that there is no reader for: the nearest one, and the keys that its reader cannot honour.
void check_known(const Json& json, const std::string& type, const std::string& path) {
    const std::vector<std::string> types = hf_model_types();
    if (std::ranges::find(types, type) != types.end()) return;
    // A type whose name begins like this one, "gemma3" and "gemma3_text", else the fewest different letters.
    std::string like = nearest(type, types);
    for (const std::string& known : types)
        if (type.starts_with(known) || known.starts_with(type)) like = known;
    std::string misfits;
    Json other = json;
    other["model_type"] = like;
    try {
        model_from_hf_config(other.dump(), "read as " + like);
        misfits = "; each of its keys is one that " + like + " has, but the class may compute something else with them";
    } catch (const DataError& error) {
        misfits = concat("; what a ", like, " could not honour:\n", error.what());
    }
    throw DataError(concat(path, ": model_type = \"", type, "\": this Tutti has ", joined(types), "; the nearest is ",
                           like, misfits));
}

}  // namespace

std::vector<std::string> hf_model_types() {
    std::vector<std::string> types = {"gpt2",    "llama",     "mistral",   "qwen2", "qwen3",
                                      "mixtral", "qwen2_moe", "qwen3_moe", "lfm2",  "lfm2_moe"};
    for (std::string& name : variant_names()) types.push_back(std::move(name));
    return types;
}

std::optional<std::string> text_config(std::string_view text, const std::string& path) {
    const Json json = parse_hf_json(text, path);
    const Json *type = json.find("model_type"), *inside = json.find("text_config");
    if (type == nullptr || inside == nullptr || !inside->is_object()) return std::nullopt;
    // The class, its text model where text_config does not say, and whether it ties embedding and head by itself.
    for (const auto& [name, text_type, tied] : {std::tuple{"qwen3_5", "qwen3_5_text", false},
                                                {"qwen3_5_moe", "qwen3_5_moe_text", false},
                                                {"gemma3", "gemma3_text", true},
                                                {"mistral3", "mistral", true}}) {
        if (*type != name) continue;
        Json of_text = *inside;
        if (!of_text.contains("model_type")) of_text["model_type"] = text_type;
        // The key outside decides, and its absence too.
        of_text["tie_word_embeddings"] =
            json.contains("tie_word_embeddings") ? json["tie_word_embeddings"] : Json(tied);
        return of_text.dump();
    }
    return std::nullopt;
}

ModelSpec model_from_hf_config(std::string_view text, const std::string& path) {
    if (const auto of_text = text_config(text, path)) return model_from_hf_config(*of_text, path + ": text_config");
    const Json json = parse_hf_json(text, path);
    std::vector<std::string> problems;
    Keys keys(json, path, problems);
    const Json* type = keys.take("model_type");
    check<DataError>(type != nullptr && type->is_string(), path, ": model_type = ", type ? type->dump() : "absent",
                     ": required a text, one of ", joined(hf_model_types()));
    check_known(json, type->text(), path);
    ModelSpec m;
    if (*type == "gpt2")
        read_gpt2(keys, m);
    else if (*type == "lfm2" || *type == "lfm2_moe")
        read_lfm2(keys, m, type->text(), path, problems);
    else if (const auto names = variant_names(); std::ranges::find(names, type->text()) != names.end())
        read_variant(type->text(), keys, m, path, problems);
    else
        read_llama(keys, m, type->text(), path, problems);
    m.preset.clear();
    m.vocab = keys.integer("vocab_size");
    m.init_std = keys.number_or("initializer_range", 0.02);
    keys.refuse_the_rest(true);
    if (problems.empty())
        for (const std::string& problem : model_problems(m)) problems.push_back(concat(path, ": read as ", problem));
    check<DataError>(problems.empty(), joined(problems, "\n"));
    return m;
}

ModelSpec model_from_hf(const std::string& directory) {
    const std::string path = directory + "/config.json";
    ModelSpec model = model_from_hf_config(read_file(path), path);
    model.hf = directory;
    return model;
}

std::string hf_dtype(DType dtype) {
    switch (dtype) {
        case DType::f32: return "float32";
        case DType::bf16: return "bfloat16";
        case DType::f16: return "float16";
        default: throw Error(concat("weights of type ", dtype, " have no Hugging Face name"));
    }
}

bool names_dtype(std::string_view text) {
    const Json json = parse_hf_json(text, "config.json");
    return json.contains("dtype") || json.contains("torch_dtype") || json.contains("quantization_config");
}

std::string hf_config_with_dtype(std::string_view text, DType dtype) {
    const Json before = parse_hf_json(text, "config.json");
    Json json = before;
    if (json.contains("quantization_config")) json.erase("quantization_config");
    // transformers 5 reads dtype before torch_dtype, and 4 torch_dtype alone.
    if (json.contains("dtype")) json["dtype"] = hf_dtype(dtype);
    if (json.contains("torch_dtype") || !json.contains("dtype")) json["torch_dtype"] = hf_dtype(dtype);
    return json == before ? std::string(text) : json.dump(2) + "\n";
}

}  // namespace tutti::spec
