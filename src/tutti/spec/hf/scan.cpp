#include <algorithm>
#include <array>
#include <cmath>

#include "tutti/base/to_size.h"
#include "tutti/spec/hf/classes.h"
#include "tutti/spec/layers.h"

namespace tutti::spec {

namespace {

std::string every_layer(const ModelSpec& m) { return to_text(layer_ranges(std::vector<bool>(m.layers, true))); }

// Keys that say how the class computes, not what.
void take_unread(Keys& keys, std::initializer_list<const char*> names) {
    for (const char* name : names) keys.take(name);
}

bool is_infinite(const Json& value) {
    const Json* tag = value.is_object() ? value.find("__float__") : nullptr;  // as transformers 5 writes it
    return tag != nullptr && *tag == "Infinity";
}

// time_step_limit: two numbers, of which the second may be infinite.
void read_step_limit(Keys& keys, ModelSpec& m) {
    const Json* limit = keys.take("time_step_limit");
    if (limit == nullptr) return;
    const auto fits = [](const Json& x) {
        return x.is_number() && std::isfinite(x.get<double>()) && x.get<double>() >= 0;
    };
    if (!limit->is_array() || limit->size() != 2 || !fits((*limit)[0]) ||
        !(fits((*limit)[1]) || is_infinite((*limit)[1])))
        return keys.problem("time_step_limit", "must be two numbers, the least and the greatest step");
    m.scan_step_min = (*limit)[0].get<double>();
    m.scan_step_max = is_infinite((*limit)[1]) ? 0 : (*limit)[1].get<double>();
    if (!is_infinite((*limit)[1]) && m.scan_step_max == 0)
        keys.problem("time_step_limit", "its second number must be above 0");
}
Json step_limit(const ModelSpec& m) {
    return Json::array(
        {m.scan_step_min, m.scan_step_max > 0 ? Json(m.scan_step_max) : Json{{"__float__", "Infinity"}}});
}

// The sizes of a scan by mamba_* keys, for `channels` of all heads; defaults as in the classes.
void read_mamba(Keys& keys, ModelSpec& m, int64_t channels, const char* of_channels) {
    m.scan_heads = keys.integer_or("mamba_n_heads", 128);
    if (const Json* dim = keys.take("mamba_d_head"); dim != nullptr && *dim != "auto")
        m.scan_head_dim = keys.integer("mamba_d_head");
    else
        m.scan_head_dim = channels / m.scan_heads;
    if (m.scan_heads * m.scan_head_dim != channels)
        keys.problem("mamba_n_heads", "times mamba_d_head = ", m.scan_head_dim, " must be ", of_channels, " = ",
                     channels);
    m.scan_groups = keys.integer_or("mamba_n_groups", 1);
    m.scan_state = keys.integer_or("mamba_d_state", 256);
    m.conv_kernel = keys.integer_or("mamba_d_conv", 4);
    m.conv_bias = keys.boolean_or("mamba_conv_bias", true);
    keys.only("mamba_proj_bias", {false});
    take_unread(keys, {"mamba_chunk_size"});
    read_step_limit(keys, m);
}
void write_mamba(const ModelSpec& m, Json& json) {
    json.update(Json{{"mamba_n_heads", m.scan_heads},
                     {"mamba_d_head", m.scan_head_dim},
                     {"mamba_n_groups", m.scan_groups},
                     {"mamba_d_state", m.scan_state},
                     {"mamba_d_conv", m.conv_kernel},
                     {"mamba_conv_bias", m.conv_bias},
                     {"mamba_proj_bias", false},
                     {"time_step_limit", step_limit(m)}});
}

// mamba_expand * hidden_size
int64_t expanded(Keys& keys, const ModelSpec& m) { return keys.integer_or("mamba_expand", 2) * m.width; }

}  // namespace

// --- Granite 4 -------------------------------------------------------------------------------------------------------

void read_granite4(Keys& keys, ModelSpec& m) {
    m.score_scale = m.score_scale == 0 ? 1 : m.score_scale;  // never D^(-1/2), which the field's 0 would mean
    const auto is_kind = [](const Json& x) {
        return x == "mamba" || x == "linear_attention" || x == "attention" || x == "full_attention";
    };
    const Json* types = keys.list("layer_types", m.layers, "times mamba or attention", is_kind);
    std::vector<bool> scans;
    for (int64_t i = 0; i < m.layers; ++i) {
        const Json* type = types ? &(*types)[to_size(i)] : nullptr;
        scans.push_back(type == nullptr || *type == "mamba" || *type == "linear_attention");
    }
    m.scan_layers = to_text(layer_ranges(scans));
    keys.only("position_embedding_type", {"rope", "nope"});
    const Json* positions = keys.take("position_embedding_type");
    if (positions == nullptr || *positions != "rope") m.nope_layers = every_layer(m);
    ModelSpec scan = m;
    read_mamba(keys, scan, expanded(keys, m), "mamba_expand * hidden_size");
    if (!m.scan_layers.empty()) m = scan;

    const int64_t shared = keys.integer_or("shared_intermediate_size", 1024);
    MixtureSpec& e = m.moe;
    e.experts = keys.integer_or("num_local_experts", 8, 0);
    e.top_k = keys.integer_or("num_experts_per_tok", 2);
    read_router_loss(keys, e, 0.001);
    keys.only("normalization_function", {"rmsnorm"});
    take_unread(keys, {"init_method"});
    if (e.experts == 0) {
        e = {};
        m.ffn = shared;
        return;
    }
    if (e.top_k > e.experts) keys.problem("num_experts_per_tok", "must be at most num_local_experts = ", e.experts);
    e.ffn = m.ffn;
    e.shared_ffn = shared;
}

void write_granite4(const ModelSpec& m, Json& json) {
    const MixtureSpec& e = m.moe;
    json["layer_types"] = Json::array();
    for (const LayerSpec& layer : all_layers(m)) json["layer_types"].push_back(layer.scan() ? "mamba" : "attention");
    json["position_embedding_type"] = m.nope_layers.empty() ? "rope" : "nope";
    if (has_scan(m)) {
        write_mamba(m, json);
        const int64_t channels = m.scan_heads * m.scan_head_dim;
        check<UsageError>(channels % m.width == 0, "no granitemoehybrid of transformers has scans of ", channels,
                          " channels in a model of width ", m.width, "; required: a multiple");
        json["mamba_expand"] = channels / m.width;
    }
    json.update(Json{{"num_local_experts", e.experts},
                     {"num_experts_per_tok", std::max<int64_t>(e.top_k, 1)},
                     {"shared_intermediate_size", e.experts > 0 ? e.shared_ffn : m.ffn},
                     {"output_router_logits", e.aux_loss == "all_layers"},
                     {"router_aux_loss_coef", e.aux_coef}});
    if (e.experts > 0) json["intermediate_size"] = e.ffn;
}

// --- Nemotron-H ------------------------------------------------------------------------------------------------------

namespace {

constexpr std::array<std::pair<char, const char*>, 6> kParts = {{{'M', "linear_attention"},
                                                                 {'*', "full_attention"},
                                                                 {'-', "mlp"},
                                                                 {'E', "moe"},
                                                                 {'M', "mamba"},
                                                                 {'*', "attention"}}};

// layers_block_type of transformers 5, else hybrid_override_pattern.
std::string read_pattern(Keys& keys) {
    const Json *types = keys.take("layers_block_type"), *text = keys.take("hybrid_override_pattern");
    std::string pattern = text && text->is_string() ? text->text() : "";
    if (types == nullptr || !types->is_array()) return pattern;
    pattern.clear();
    for (const Json& type : *types) {
        const auto part = std::ranges::find_if(kParts, [&](const auto& p) { return type == p.second; });
        pattern += part == kParts.end() ? '?' : part->first;
    }
    return pattern;
}

void read_nemotron_experts(Keys& keys, ModelSpec& m) {
    MixtureSpec e;
    e.experts = keys.integer_or("n_routed_experts", 8);
    e.top_k = keys.integer_or("num_experts_per_tok", 2);
    e.ffn = keys.integer_or("moe_intermediate_size", 7688);
    e.shared_ffn = keys.integer_or("moe_shared_expert_intermediate_size", 7688);
    e.latent = keys.integer_or("moe_latent_size", 0, 0);
    e.score = "sigmoid";
    e.expert_bias = true;
    e.scale = keys.number_or("routed_scaling_factor", 1);
    e.groups = keys.integer_or("n_group", 1);
    e.top_groups = keys.integer_or("topk_group", 1);
    if (e.groups > 1) e.group_best = 2;
    e.normalise = keys.boolean_or("norm_topk_prob", true);
    const bool has = m.pattern.find('E') != std::string::npos;
    keys.take("n_shared_experts");  // not read: there is one, as wide as its own key says
    if (has) keys.only("n_shared_experts", {1});
    if (has && e.top_k > e.experts)
        keys.problem("num_experts_per_tok", "must be at most n_routed_experts = ", e.experts);
    if (has) m.moe = e;
}

}  // namespace

int64_t nemotron_layers(Keys& keys) { return std::ssize(read_pattern(keys)); }

void read_nemotron(Keys& keys, ModelSpec& m) {
    m.pattern = read_pattern(keys);
    if (m.pattern.empty() || m.pattern.find_first_not_of("M*-E") != std::string::npos)
        keys.problem("hybrid_override_pattern", "required, of the letters M, *, - and E, or layers_block_type");
    if (std::ssize(m.pattern) != m.layers)
        keys.problem("num_hidden_layers", "must be the ", m.pattern.size(), " layers of the pattern");
    m.nope_layers = every_layer(m);
    keys.only("attention_head_dim", {m.head_dim});  // the older name
    keys.only("norm_eps", {m.norm_eps});
    keys.only("rms_norm_eps", {m.norm_eps});
    keys.only("mamba_hidden_act", {"silu"});
    keys.only("num_local_experts", {keys.integer_or("n_routed_experts", 8)});
    for (const char* bias : {"use_bias", "mamba_proj_bias", "attention_bias", "mlp_bias"}) keys.only(bias, {false});
    ModelSpec scan = m;
    scan.scan_heads = keys.integer_or("mamba_num_heads", 128);
    scan.scan_head_dim = keys.integer_or("mamba_head_dim", 64);
    scan.scan_groups = keys.integer_or("n_groups", 8);
    scan.scan_state = keys.integer_or("ssm_state_size", 128);
    scan.conv_kernel = keys.integer_or("conv_kernel", 4);
    scan.conv_bias = keys.boolean_or("use_conv_bias", true);
    read_step_limit(keys, scan);  // not read by the class, whose steps are bounded by time_step_min alone
    if (scan.scan_step_min != 0 || scan.scan_step_max != 0)
        keys.problem("time_step_limit", "the class does not read it; leave it out, or set [0, Infinity]");
    scan.scan_step_min = keys.number_or("time_step_min", 0.001);
    if (has_scan(m)) m = scan;
    read_nemotron_experts(keys, m);
    take_unread(keys, {"expand", "chunk_size", "time_step_max", "time_step_floor", "mamba_ssm_cache_dtype",
                       "use_mamba_kernels", "residual_in_fp32", "rescale_prenorm_residual", "num_logits_to_keep",
                       "moe_shared_expert_overlap", "num_nextn_predict_layers", "mtp_layers_block_type",
                       "mtp_hybrid_override_pattern", "output_router_logits"});
}

void write_nemotron(const ModelSpec& m, Json& json) {
    json.erase("rope_scaling");
    json.update(Json{{"hybrid_override_pattern", m.pattern}, {"rescale_prenorm_residual", false}});
    if (has_scan(m))
        json.update(Json{{"mamba_num_heads", m.scan_heads},
                         {"mamba_head_dim", m.scan_head_dim},
                         {"n_groups", m.scan_groups},
                         {"ssm_state_size", m.scan_state},
                         {"conv_kernel", m.conv_kernel},
                         {"use_conv_bias", m.conv_bias},
                         {"time_step_min", m.scan_step_min}});
    if (m.mtp_depth > 0) {
        json["num_nextn_predict_layers"] = m.mtp_depth;
        Json& types = json["mtp_layers_block_type"] = Json::array();
        for (int64_t i = m.layers; i < m.layers + layers_of_a_depth(m); ++i) {
            const LayerSpec part = layer(m, i);
            types.push_back(part.scan()        ? "linear_attention"
                            : part.attention() ? "full_attention"
                            : part.mixture()   ? "moe"
                                               : "mlp");
        }
    }
    const MixtureSpec& e = m.moe;
    if (e.experts == 0) return;
    json.update(Json{{"n_routed_experts", e.experts},
                     {"num_experts_per_tok", e.top_k},
                     {"n_shared_experts", 1},
                     {"moe_intermediate_size", e.ffn},
                     {"moe_shared_expert_intermediate_size", e.shared_ffn},
                     {"moe_latent_size", e.latent > 0 ? Json(e.latent) : Json(nullptr)},
                     {"routed_scaling_factor", e.scale},
                     {"n_group", e.groups},
                     {"topk_group", e.top_groups},
                     {"norm_topk_prob", e.normalise}});
}

// --- Falcon-H1 -------------------------------------------------------------------------------------------------------

namespace {

// `count` factors, all 1 in files without the key.
void read_factors(Keys& keys, const char* key, std::initializer_list<double*> places) {
    const Json* list = keys.list(key, std::ssize(places), "numbers of at least 0", [](const Json& x) {
        return x.is_number() && std::isfinite(x.get<double>()) && x.get<double>() >= 0;
    });
    if (list == nullptr) return;
    size_t i = 0;
    for (double* place : places) *place = (*list)[i++].get<double>();
}

}  // namespace

void read_falcon(Keys& keys, ModelSpec& m) {
    m.scan_layers = every_layer(m);
    m.scan_beside = true;
    const int64_t expand = expanded(keys, m);
    // null, unlike no key, is mamba_expand * hidden_size
    const int64_t channels = keys.has("mamba_d_ssm") ? keys.integer_or("mamba_d_ssm", expand) : 1024;
    read_mamba(keys, m, channels, "mamba_d_ssm");
    const bool before = keys.boolean_or("mamba_norm_before_gate", true);
    m.scan_norm = !keys.boolean_or("mamba_rms_norm", false) ? "none" : before ? "before_gate" : "gated";
    Multipliers f;
    f.key = keys.number_or("key_multiplier", 1);
    f.attention_in = keys.number_or("attention_in_multiplier", 1);
    f.attention_out = keys.number_or("attention_out_multiplier", 1);
    f.scan_in = keys.number_or("ssm_in_multiplier", 1);
    f.scan_out = keys.number_or("ssm_out_multiplier", 1);
    read_factors(keys, "ssm_multipliers", {&f.scan[0], &f.scan[1], &f.scan[2], &f.scan[3], &f.scan[4]});
    read_factors(keys, "mlp_multipliers", {&f.gate, &f.down});
    m.multipliers = to_text(f);
    keys.only("attention_bias", {false});
    keys.only("projectors_bias", {false});
    keys.only("mamba_use_mlp", {true});
    take_unread(keys, {"attn_layer_indices", "num_logits_to_keep"});
}

void write_falcon(const ModelSpec& m, Json& json) {
    write_mamba(m, json);
    const Multipliers f = multipliers_of(m.multipliers);
    json.update(Json{{"mamba_d_ssm", m.scan_heads * m.scan_head_dim},
                     {"mamba_rms_norm", m.scan_norm != "none"},
                     {"mamba_norm_before_gate", m.scan_norm == "before_gate"},
                     {"attention_bias", false},
                     {"projectors_bias", false},
                     {"key_multiplier", f.key},
                     {"attention_in_multiplier", f.attention_in},
                     {"attention_out_multiplier", f.attention_out},
                     {"ssm_in_multiplier", f.scan_in},
                     {"ssm_out_multiplier", f.scan_out},
                     {"ssm_multipliers", std::vector<double>(f.scan.begin(), f.scan.end())},
                     {"mlp_multipliers", std::vector<double>{f.gate, f.down}}});
}

// --- Mamba-2 ---------------------------------------------------------------------------------------------------------

void read_mamba2(Keys& keys, ModelSpec& m) {
    m.width = keys.integer("hidden_size");
    m.layers = keys.integer("num_hidden_layers");
    m.norm_eps = keys.number("layer_norm_epsilon");
    m.max_positions = int64_t{1} << 20;  // of no class: any number of tokens
    m.pattern = std::string(to_size(m.layers), 'M');
    m.nope_layers = every_layer(m);
    m.scan_heads = keys.integer_or("num_heads", 128);
    m.scan_head_dim = keys.integer_or("head_dim", 64);
    m.scan_groups = keys.integer_or("n_groups", 8);
    m.scan_state = keys.integer_or("state_size", 128);
    m.conv_kernel = keys.integer_or("conv_kernel", 4);
    m.conv_bias = keys.boolean_or("use_conv_bias", true);
    if (keys.integer_or("expand", 2) * m.width != m.scan_heads * m.scan_head_dim)
        keys.problem("expand", "times hidden_size must be num_heads * head_dim = ", m.scan_heads * m.scan_head_dim);
    m.heads = m.kv_heads = m.scan_heads;
    m.head_dim = m.scan_head_dim + m.scan_head_dim % 2;
    m.ffn = m.width;
    read_step_limit(keys, m);
    keys.only("use_bias", {false});
    keys.only("rescale_prenorm_residual", {false});  // transformers 5.24 divides weights that it has loaded, too
    take_unread(keys, {"chunk_size", "residual_in_fp32", "time_step_rank", "time_step_min", "time_step_max",
                       "time_step_floor"});
}

void write_mamba2(const ModelSpec& m, Json& json) {
    for (const char* key : {"intermediate_size", "num_attention_heads", "num_key_value_heads",
                            "max_position_embeddings", "rope_theta", "rope_scaling", "attention_dropout"})
        json.erase(key);
    const int64_t channels = m.scan_heads * m.scan_head_dim;
    check<UsageError>(channels % m.width == 0, "no mamba2 of transformers has scans of ", channels,
                      " channels in a model of width ", m.width, "; required: a multiple");
    json.update(Json{{"num_heads", m.scan_heads},
                     {"head_dim", m.scan_head_dim},
                     {"n_groups", m.scan_groups},
                     {"state_size", m.scan_state},
                     {"conv_kernel", m.conv_kernel},
                     {"use_conv_bias", m.conv_bias},
                     {"use_bias", false},
                     {"expand", channels / m.width},
                     {"time_step_limit", step_limit(m)},
                     {"rescale_prenorm_residual", false}});
}

}  // namespace tutti::spec
