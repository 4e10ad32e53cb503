// spec/validate_model.cpp: the rules between the fields of [model]. Each function adds one line per broken rule;
// nothing stops at the first.
#include <algorithm>

#include "tutti/spec/families.h"
#include "tutti/spec/fields.h"
#include "tutti/spec/layers.h"
#include "tutti/spec/nearest.h"
#include "tutti/spec/problems.h"
#include "tutti/spec/rules.h"
#include "tutti/spec/validate.h"

namespace tutti::spec {
namespace {

// 0, false or ""; of a text with choices the first one.
template <class T>
T unused_value(const Field& field) {
    if constexpr (std::is_same_v<T, std::string>)
        if (!field.range.choices.empty()) return field.range.choices.front();
    return {};
}

// Fields that the family does not have must have no value: a request is met or refused, never ignored.
void check_unused(const ModelSpec& m, Problems& problems) {
    const RunSpec run{.model = m};
    for_each_field(run, [&]<class T>(const Field& field, const T& value) {
        if (field.section == "model" && !traits_of(m).uses(field.key))
            require(problems, value == unused_value<T>(field), field.name(), " = ", toml_text(value), ": the family ",
                    name_of(m.family), " does not use it; it must be ", toml_text(unused_value<T>(field)));
    });
}

void check_transformer(const ModelSpec& m, Problems& problems) {
    const std::pair<const char*, int64_t> sizes[] = {{"vocab", m.vocab},       {"heads", m.heads},
                                                     {"kv_heads", m.kv_heads}, {"head_dim", m.head_dim},
                                                     {"ffn", m.ffn},           {"max_positions", m.max_positions}};
    for (const auto& [key, size] : sizes) {
        require(problems, size >= 1, "[model] ", key, " = ", size, ": the family ", name_of(m.family),
                " needs at least 1");
    }
    require(problems, m.norm_eps > 0, "[model] norm_eps = ", toml_text(m.norm_eps), ": must be > 0");
    if (m.heads < 1 || m.kv_heads < 1 || m.head_dim < 1 || m.width < 1) return;

    const int64_t all_heads = product({m.heads, m.head_dim});
    require(problems, all_heads == m.width || !traits_of(m).plain_heads, "[model] heads * head_dim = ", m.heads, " * ",
            m.head_dim, " = ", all_heads, ": in ", name_of(m.family), " it must equal width = ", m.width, [&] {
                const int64_t dim = m.width / m.heads;
                return m.width % m.heads == 0
                           ? suggestion("; for example head_dim = ", dim, dim, "model.head_dim")
                           : nearest_divisors("; heads must divide width, nearest: heads = ", m.width, m.heads,
                                              "model.heads");
            });
    require(problems, m.heads % m.kv_heads == 0 || traits_of(m).plain_heads, "[model] kv_heads = ", m.kv_heads,
            ": must divide heads = ", m.heads,
            [&] { return nearest_divisors("; nearest: ", m.heads, m.kv_heads, "model.kv_heads"); });
}

void check_positions(const ModelSpec& m, Problems& problems) {
    if (traits_of(m).plain_heads) {
        require(problems, m.kv_heads == m.heads, "[model] kv_heads = ", m.kv_heads, ": the family ", name_of(m.family),
                " has no grouped queries; it must equal heads = ", m.heads);
    }
    if (traits_of(m).rotary) {
        require(problems, m.rope_theta > 0, "[model] rope_theta = ", toml_text(m.rope_theta), ": must be > 0");
        require(problems, m.head_dim % 2 == 0, "[model] head_dim = ", m.head_dim, ": must be even, RoPE rotates pairs",
                [&] { return suggestion("; nearest: ", m.head_dim - 1, m.head_dim + 1, "model.head_dim"); });
    }
}

// One way to write each list, so that equal models are equal specs. Nothing when it is no list of this model's layers.
std::vector<LayerRange> check_layer_list(const ModelSpec& m, const char* key, const std::string& text,
                                         Problems& problems) {
    try {
        const std::vector<LayerRange> ranges = layer_ranges(text);
        const std::string given = concat("[model] ", key, " = ", toml_text(text), ": ");
        require(problems, to_text(ranges) == text, given, "write it as ", toml_text(to_text(ranges)));
        require(problems, ranges.empty() || ranges.back().last < m.layers, given, "the layers are 0 to ", m.layers - 1);
        return ranges;
    } catch (const UsageError& error) {
        problems.push_back(concat("[model] ", key, ": ", error.what()));
        return {};
    }
}

void check_window(const ModelSpec& m, Problems& problems) {
    if (m.window_layers.empty()) return;
    const std::string given = concat("[model] window_layers = ", toml_text(m.window_layers), ": ");
    const std::vector<LayerRange> ranges = check_layer_list(m, "window_layers", m.window_layers, problems);
    if (ranges.empty()) return;
    require(problems, ranges != std::vector<LayerRange>{{0, m.layers - 1}}, given,
            "these are all layers; leave it out");
    require(problems, m.window > 0, given, "has no effect while window = 0; set window or leave it out");
}

void check_convolutions(const ModelSpec& m, Problems& problems) {
    const bool of_lfm2 = traits_of(m).uses("conv_layers");
    const bool scans = has_scan(m);
    const char* key = of_lfm2 ? "conv_layers" : scans ? "scan_layers" : "delta_layers";
    const std::string& layers = of_lfm2 ? m.conv_layers : scans ? m.scan_layers : m.delta_layers;
    check_layer_list(m, key, layers, problems);
    require(problems, of_lfm2 || scans || !m.conv_bias, "[model] conv_bias = true: no layer has a convolution with a ",
            "bias; set false");
    if (layers.empty() && !scans) {
        require(problems, m.conv_kernel == 0 && !m.conv_bias, "[model] conv_kernel = ", m.conv_kernel,
                ", conv_bias = ", toml_text(m.conv_bias), ": have no effect while ", key,
                " is empty; name the layers or leave both out");
    } else {
        require(problems, m.conv_kernel >= 1, "[model] conv_kernel = ", m.conv_kernel, ": ", key, " = ",
                toml_text(layers), " have a convolution, which needs at least 1; ",
                of_lfm2 ? "LFM2 has 3"
                : scans ? "Mamba-2 has 4"
                        : "Qwen3-Next has 4");
    }
}

void check_scan(const ModelSpec& m, Problems& problems) {
    if (!traits_of(m).uses("scan_layers")) return;
    const bool scans = has_scan(m);
    for (const auto& [key, size] : {std::pair{"scan_heads", m.scan_heads},
                                    {"scan_head_dim", m.scan_head_dim},
                                    {"scan_groups", m.scan_groups},
                                    {"scan_state", m.scan_state}})
        require(problems, (size > 0) == scans, "[model] ", key, " = ", size, ": ",
                scans ? "layers with a scan need at least 1" : "no layer has a scan; set 0");
    require(problems, m.scan_groups == 0 || m.scan_heads % m.scan_groups == 0, "[model] scan_groups = ", m.scan_groups,
            ": must divide scan_heads = ", m.scan_heads,
            [&] { return nearest_divisors("; nearest: ", m.scan_heads, m.scan_groups, "model.scan_groups"); });
    require(problems, m.scan_step_max == 0 || m.scan_step_max >= m.scan_step_min,
            "[model] scan_step_max = ", toml_text(m.scan_step_max),
            ": must be at least scan_step_min = ", toml_text(m.scan_step_min), ", or 0 for no bound");
    require(problems,
            scans || (m.scan_step_min == 0 && m.scan_step_max == 0 && m.scan_norm == "gated" && !m.scan_beside),
            "[model] scan_step_min, scan_step_max, scan_norm, scan_beside: no layer has a scan; leave them out");
    require(problems, !scans || (m.delta_layers.empty() && m.kv_latent == 0),
            "[model] a model with scans has no delta_layers or kv_latent beside them yet; leave them out");
    require(problems, !m.scan_beside || m.pattern.empty(),
            "[model] scan_beside = true: a layer of a pattern is one part; set false");
}

// Layers that are one part each.
void check_pattern(const ModelSpec& m, Problems& problems) {
    const std::string given = concat("[model] pattern = ", toml_text(m.pattern), ": ");
    const bool relu2 = m.gate == "relu2";
    require(problems, relu2 == !m.pattern.empty(), "[model] gate = ", toml_text(m.gate),
            relu2 ? ": the square of ReLU is that of models with a pattern; set another gate"
                  : ": layers of a pattern have the square of ReLU; set gate = \"relu2\"");
    if (m.pattern.empty()) {
        require(problems, m.moe.latent == 0, "[model] moe.latent = ", m.moe.latent,
                ": only experts of a pattern work on a latent; set 0");
        return;
    }
    require(problems, static_cast<int64_t>(m.pattern.size()) == m.layers, given, "has ", m.pattern.size(),
            " letters for layers = ", m.layers, "; required: one for each");
    require(problems, m.pattern.find_first_not_of("M*-E") == std::string::npos, given,
            "the letters are M, *, - and E: a scan, attention, an MLP, experts");
    const bool has_experts = m.pattern.find('E') != std::string::npos;
    require(problems, has_experts == (m.moe.experts > 0), given, has_experts ? "E needs" : "without an E there are no",
            " moe.experts");
    require(problems, m.scan_layers.empty() && m.moe.layers.empty() && m.norms == "pre" && m.residual_scale == 0, given,
            "it says which layers have what, each behind a norm; leave out scan_layers, moe.layers, norms and "
            "residual_scale");
}

void check_multipliers(const ModelSpec& m, Problems& problems) {
    if (m.multipliers.empty()) return;
    const std::string given = concat("[model] multipliers = ", toml_text(m.multipliers), ": ");
    try {
        const std::string text = to_text(multipliers_of(m.multipliers));
        require(problems, text == m.multipliers, given, "write it as ", toml_text(text));
    } catch (const UsageError& error) {
        problems.push_back(concat(given, error.what()));
    }
    require(problems, m.scan_beside && !m.qkv_bias && m.moe.experts == 0, given,
            "they are of layers with attention and a scan side by side, without qkv_bias and experts");
}

void check_delta_rule(const ModelSpec& m, Problems& problems) {
    if (!traits_of(m).uses("delta_layers")) return;
    for (const auto& [key, size] : {std::pair{"delta_key_heads", m.delta_key_heads},
                                    {"delta_value_heads", m.delta_value_heads},
                                    {"delta_key_dim", m.delta_key_dim},
                                    {"delta_value_dim", m.delta_value_dim}})
        require(problems, (size > 0) == !m.delta_layers.empty(), "[model] ", key, " = ", size,
                ": delta_layers = ", toml_text(m.delta_layers),
                m.delta_layers.empty() ? " name no layer; set 0" : " need at least 1");
    require(problems, m.delta_key_heads == 0 || m.delta_value_heads % m.delta_key_heads == 0,
            "[model] delta_key_heads = ", m.delta_key_heads, ": must divide delta_value_heads = ", m.delta_value_heads,
            [&] {
                return nearest_divisors("; nearest: ", m.delta_value_heads, m.delta_key_heads, "model.delta_key_heads");
            });
    require(problems, !m.attention_gate || m.kv_latent == 0, "[model] attention_gate = true: latent attention ",
            "(kv_latent) has no gate; set one of them");
}

void check_rope_scaling(const RopeScaling& scaling, Problems& problems) {
    if (scaling.factor == 0) {
        require(
            problems, scaling == RopeScaling{},
            "[model] rope_scaling: its other keys have no effect while factor = ", "0; set factor or leave them out");
        return;
    }
    RopeScaling used{.type = scaling.type, .factor = scaling.factor};  // the keys that the type reads
    if (scaling.type == "longrope") {
        used.attention_factor = scaling.attention_factor;
        used.short_factors = scaling.short_factors;
        used.long_factors = scaling.long_factors;
    }
    if (scaling.type != "linear") used.original_max_positions = scaling.original_max_positions;
    if (scaling.type == "llama3") {
        used.low_freq_factor = scaling.low_freq_factor;
        used.high_freq_factor = scaling.high_freq_factor;
    }
    if (scaling.type == "yarn") {
        used.beta_fast = scaling.beta_fast;
        used.beta_slow = scaling.beta_slow;
        used.attention_factor = scaling.attention_factor;
        used.truncate = scaling.truncate;
        used.mscale = scaling.mscale;
        used.mscale_all_dim = scaling.mscale_all_dim;
    }
    require(problems, scaling == used, "[model] rope_scaling: type = ", toml_text(scaling.type),
            " does not use every key that is set; leave out those of the other types");
    require(problems, scaling.high_freq_factor > scaling.low_freq_factor,
            "[model] rope_scaling.high_freq_factor = ", toml_text(scaling.high_freq_factor),
            ": must be above low_freq_factor = ", toml_text(scaling.low_freq_factor));
    require(problems, scaling.beta_fast >= scaling.beta_slow,
            "[model] rope_scaling.beta_fast = ", toml_text(scaling.beta_fast),
            ": must be at least beta_slow = ", toml_text(scaling.beta_slow));
}

void check_latent(const ModelSpec& m, Problems& problems) {
    const std::string given = concat("[model] kv_latent = ", m.kv_latent, ": ");
    if (m.kv_latent == 0) {
        require(problems, m.q_latent == 0, "[model] q_latent = ", m.q_latent,
                ": has no effect while kv_latent = 0; set kv_latent or leave it out");
        require(problems, m.value_dim == 0, "[model] value_dim = ", m.value_dim,
                ": values are as wide as keys while kv_latent = 0; set kv_latent or leave it out");
        return;
    }
    require(problems, m.rope_dims > 0 && m.rope_dims < m.head_dim, given,
            "the heads share a key of rope_dims = ", m.rope_dims, " channels, from 2 to below head_dim = ", m.head_dim,
            "; set rope_dims");
    require(problems, m.value_dim <= m.head_dim, "[model] value_dim = ", m.value_dim,
            ": must be at most head_dim = ", m.head_dim,
            suggestion("; nearest: value_dim = ", m.head_dim, m.head_dim, "model.value_dim"));
    require(problems, m.kv_heads == m.heads, "[model] kv_heads = ", m.kv_heads,
            ": with kv_latent each head has its own ", "keys; it must equal heads = ", m.heads);
    require(problems,
            !m.head_norm && !m.width_norm && !m.qkv_bias && !m.output_bias && m.query_growth == 0 && m.window == 0 &&
                m.nope_layers.empty() && !m.sinks,
            given, "latent attention has no head_norm, width_norm, qkv_bias, output_bias, query_growth, window, ",
            "nope_layers or sinks; leave them out");
}

// The options of Llama's relatives.
void check_options(const ModelSpec& m, Problems& problems) {
    require(problems, !m.head_norm || !m.width_norm,
            "[model] width_norm = true: queries and keys are normalised already, by head_norm; set one of them");
    require(problems, !m.embedding_sqrt || m.embedding_scale == 0,
            "[model] embedding_scale = ", toml_text(m.embedding_scale),
            ": embedding_sqrt multiplies the embeddings already; set one of them");
    require(problems, m.rope_dims <= m.head_dim && m.rope_dims % 2 == 0, "[model] rope_dims = ", m.rope_dims,
            ": must be even and at most head_dim = ", m.head_dim, ", RoPE rotates pairs of channels");
    check_layer_list(m, "nope_layers", m.nope_layers, problems);
    require(problems, m.window_rope_theta == 0 || m.window > 0,
            "[model] window_rope_theta = ", toml_text(m.window_rope_theta),
            ": has no effect while window = 0; set window or leave it out");
    require(problems, m.query_growth == 0 || m.rope_scaling.factor > 0,
            "[model] query_growth = ", toml_text(m.query_growth),
            ": needs rope_scaling, whose original_max_positions it reads");
    require(problems, m.query_growth == 0 || (m.rope_dims == 0 && m.nope_layers.empty() && m.window_rope_theta == 0),
            "[model] query_growth = ", toml_text(m.query_growth),
            ": grows whole heads with RoPE; it needs rope_dims = 0, nope_layers = \"\" and window_rope_theta = 0");
    check_latent(m, problems);
    check_scan(m, problems);
    check_pattern(m, problems);
    check_multipliers(m, problems);
    require(problems, (m.mtp_depth > 0) == (m.mtp_weight > 0), "[model] mtp_depth = ", m.mtp_depth,
            " with mtp_weight = ", toml_text(m.mtp_weight),
            ": one switches these predictions on and the other off; DeepSeek-V3 has 1 with 0.3");
    require(problems, (m.gate == "clamped") == (m.gate_limit > 0), "[model] gate_limit = ", toml_text(m.gate_limit),
            ": gate = \"clamped\" needs a limit above 0, and gate = ", toml_text(m.gate), " is given; gpt-oss has ",
            "gate = \"clamped\" and gate_limit = 7");
    if (m.rope_scaling.type != "longrope" || m.rope_scaling.factor == 0) return;
    const int64_t frequencies = (m.rope_dims > 0 ? m.rope_dims : m.head_dim) / 2;
    for (const auto& [key, text] :
         {std::pair{"short_factors", m.rope_scaling.short_factors}, {"long_factors", m.rope_scaling.long_factors}}) {
        const std::string given = concat("[model] rope_scaling.", key, " = ", toml_text(text), ": ");
        try {
            const std::vector<double> factors = number_list(text);
            require(problems, static_cast<int64_t>(factors.size()) == frequencies, given, "needs ", frequencies,
                    " numbers, one for each frequency");
            require(problems, std::ranges::all_of(factors, [](double f) { return f > 0; }), given, "must be above 0");
            require(problems, list_text(factors) == text, given, "write it as ", toml_text(list_text(factors)));
        } catch (const UsageError& error) {
            problems.push_back(concat(given, error.what()));
        }
    }
}

void check_mixture(const ModelSpec& m, Problems& problems) {
    const MixtureSpec& e = m.moe;
    if (e.experts == 0) {
        require(problems, e == MixtureSpec{},
                "[model] moe: its other keys have no effect while experts = 0; set experts or leave them out");
        return;
    }
    require(problems, traits_of(m).mixtures, "[model] moe.experts = ", e.experts, ": the family ", name_of(m.family),
            " has no mixture of experts; set 0");
    require(problems, !m.mlp_bias, "[model] mlp_bias = true: experts have no mlp_bias; set false, or moe.bias");
    require(problems, e.top_k >= 1 && e.top_k <= e.experts, "[model] moe.top_k = ", e.top_k,
            ": must be from 1 to experts = ", e.experts);
    require(problems, e.ffn >= 1, "[model] moe.ffn = ", e.ffn, ": must be at least 1");
    require(problems, !e.shared_gate || e.shared_ffn > 0,
            "[model] moe.shared_gate = true: there is no shared expert; set shared_ffn, or false");
    require(problems, e.experts % e.groups == 0, "[model] moe.groups = ", e.groups,
            ": must divide experts = ", e.experts,
            [&] { return nearest_divisors("; nearest: ", e.experts, e.groups, "model.moe.groups"); });
    require(problems, e.top_groups <= e.groups && (e.groups > 1 || e.top_groups == 1),
            "[model] moe.top_groups = ", e.top_groups, ": must be at most groups = ", e.groups);
    if (e.groups > 1 && e.experts % e.groups == 0 && e.top_groups <= e.groups) {
        require(problems, e.top_k <= product({e.experts / e.groups, e.top_groups}), "[model] moe.top_k = ", e.top_k,
                ": the ", e.top_groups, " groups of ", e.experts / e.groups,
                " experts that a token may go to have fewer; set top_groups higher, or top_k lower");
        require(problems, e.group_best > 0 || e.top_k % e.top_groups == 0, "[model] moe.top_k = ", e.top_k,
                ": must be a multiple of top_groups = ", e.top_groups,
                ", since a group is judged by its top_k / top_groups best experts; or set group_best");
        require(problems, e.group_best <= e.experts / e.groups, "[model] moe.group_best = ", e.group_best,
                ": a group has ", e.experts / e.groups, " experts");
    }
    require(problems, e.group_best == 0 || e.groups > 1, "[model] moe.group_best = ", e.group_best,
            ": has no effect while groups = 1; set groups or leave it out");
    require(problems, e.capacity_factor > 0 || e.drop == "probability", "[model] moe.drop = ", toml_text(e.drop),
            ": nothing is dropped while capacity_factor = 0; set it or leave drop out");
    require(problems, (e.aux_loss == "none") == (e.aux_coef == 0), "[model] moe.aux_loss = ", toml_text(e.aux_loss),
            " with aux_coef = ", toml_text(e.aux_coef), ": one switches this loss on and the other off");
    const bool all = !e.layers.empty() && check_layer_list(m, "moe.layers", e.layers, problems) ==
                                              std::vector<LayerRange>{{0, m.layers - 1}};
    require(problems, !all, "[model] moe.layers = ", toml_text(e.layers), ": these are all layers; leave it out");
}

}  // namespace

void clear_unused(ModelSpec& model) {
    RunSpec run{.model = model};
    for_each_field(run, [&]<class T>(const Field& field, T& value) {
        if (field.section == "model" && !traits_of(model).uses(field.key)) value = unused_value<T>(field);
    });
    model = run.model;
}

void check_model(const ModelSpec& m, Problems& problems) {
    check_unused(m, problems);
    if (traits_of(m).tokens) check_transformer(m, problems);
    check_positions(m, problems);
    if (traits_of(m).uses("window_layers")) check_window(m, problems);
    require(problems, m.head_norm || !traits_of(m).head_norm, "[model] head_norm = false: the family ",
            name_of(m.family), " always has it; set true");
    if (traits_of(m).uses("conv_kernel")) check_convolutions(m, problems);
    check_delta_rule(m, problems);
    check_rope_scaling(m.rope_scaling, problems);
    if (traits_of(m).options) check_options(m, problems);
    check_mixture(m, problems);
}

std::vector<std::string> model_problems(const ModelSpec& model) {
    const RunSpec run{.model = model};
    Problems problems = out_of_range(run, "model");
    if (problems.empty()) check_model(model, problems);
    return problems;
}

}  // namespace tutti::spec
