// spec/validate_model.cpp: the rules between the fields of [model].
#include "tutti/spec/fields.h"
#include "tutti/spec/layers.h"
#include "tutti/spec/problems.h"
#include "tutti/spec/validate.h"

namespace tutti::spec {
namespace {

// A field that the family does not have must be 0 (false): a request is met or refused, never ignored.
template <class T>
void unused(Problems& problems, const char* key, const T& value, const char* family) {
    require(problems, value == T{}, "[model] ", key, " = ", toml_text(value), ": the family ", family,
            " does not use it; it must be ", toml_text(T{}));
}

// What only the lfm2 family may have.
void check_no_convolutions(const ModelSpec& m, Problems& problems) {
    const std::string family(name_of(m.family));
    unused(problems, "conv_layers", m.conv_layers, family.c_str());
    unused(problems, "conv_kernel", m.conv_kernel, family.c_str());
    unused(problems, "conv_bias", m.conv_bias, family.c_str());
}

// What only the llama family may have; lfm2 has head_norm too.
void check_plain_attention(const ModelSpec& m, const char* family, Problems& problems) {
    unused(problems, "qkv_bias", m.qkv_bias, family);
    unused(problems, "output_bias", m.output_bias, family);
    unused(problems, "mlp_bias", m.mlp_bias, family);
    if (m.family != Family::lfm2) unused(problems, "head_norm", m.head_norm, family);
    unused(problems, "window", m.window, family);
    unused(problems, "window_layers", m.window_layers, family);
}

void check_mlp(const ModelSpec& m, Problems& problems) {
    unused(problems, "vocab", m.vocab, "mlp");
    unused(problems, "heads", m.heads, "mlp");
    unused(problems, "kv_heads", m.kv_heads, "mlp");
    unused(problems, "head_dim", m.head_dim, "mlp");
    unused(problems, "ffn", m.ffn, "mlp");
    check_plain_attention(m, "mlp", problems);
    unused(problems, "max_positions", m.max_positions, "mlp");
    unused(problems, "norm_eps", m.norm_eps, "mlp");
    unused(problems, "rope_theta", m.rope_theta, "mlp");
    unused(problems, "rope_scaling.factor", m.rope_scaling.factor, "mlp");
    unused(problems, "tie_embeddings", m.tie_embeddings, "mlp");
    unused(problems, "dropout", m.dropout, "mlp");
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
    require(problems, all_heads == m.width || m.family != Family::gpt2, "[model] heads * head_dim = ", m.heads, " * ",
            m.head_dim, " = ", all_heads, ": in gpt2 it must equal width = ", m.width,
            m.width % m.heads == 0
                ? suggestion("; for example head_dim = ", m.width / m.heads, m.width / m.heads, "model.head_dim")
                : nearest_divisors("; heads must divide width, nearest: heads = ", m.width, m.heads, "model.heads"));
    require(problems, m.heads % m.kv_heads == 0 || m.family == Family::gpt2, "[model] kv_heads = ", m.kv_heads,
            ": must divide heads = ", m.heads, nearest_divisors("; nearest: ", m.heads, m.kv_heads, "model.kv_heads"));
}

void check_positions(const ModelSpec& m, Problems& problems) {
    if (m.family == Family::gpt2) {
        check_plain_attention(m, "gpt2", problems);
        unused(problems, "rope_theta", m.rope_theta, "gpt2");
        unused(problems, "rope_scaling.factor", m.rope_scaling.factor, "gpt2");
        require(problems, m.kv_heads == m.heads, "[model] kv_heads = ", m.kv_heads, ": the family gpt2 has no grouped ",
                "queries; it must equal heads = ", m.heads);
    }
    if (m.family == Family::llama || m.family == Family::lfm2) {
        require(problems, m.rope_theta > 0, "[model] rope_theta = ", toml_text(m.rope_theta), ": must be > 0");
        require(problems, m.head_dim % 2 == 0, "[model] head_dim = ", m.head_dim, ": must be even, RoPE turns pairs",
                suggestion("; nearest: ", m.head_dim - 1, m.head_dim + 1, "model.head_dim"));
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

void check_lfm2(const ModelSpec& m, Problems& problems) {
    check_plain_attention(m, "lfm2", problems);
    require(problems, m.head_norm, "[model] head_norm = false: the family lfm2 always has it; set true");
    check_layer_list(m, "conv_layers", m.conv_layers, problems);
    if (m.conv_layers.empty()) {
        require(problems, m.conv_kernel == 0 && !m.conv_bias, "[model] conv_kernel = ", m.conv_kernel,
                ", conv_bias = ", toml_text(m.conv_bias),
                ": have no effect while conv_layers is empty; name the layers or leave both out");
    } else {
        require(problems, m.conv_kernel >= 1, "[model] conv_kernel = ", m.conv_kernel,
                ": conv_layers = ", toml_text(m.conv_layers),
                " have a convolution, which needs at least 1; LFM2 has 3");
    }
}

void check_rope_scaling(const RopeScaling& scaling, Problems& problems) {
    if (scaling.factor == 0) {
        require(
            problems, scaling == RopeScaling{},
            "[model] rope_scaling: its other keys have no effect while factor = ", "0; set factor or leave them out");
        return;
    }
    RopeScaling used{.type = scaling.type, .factor = scaling.factor};  // the keys that the type reads
    if (scaling.type != "linear") used.original_max_positions = scaling.original_max_positions;
    if (scaling.type == "llama3") {
        used.low_freq_factor = scaling.low_freq_factor;
        used.high_freq_factor = scaling.high_freq_factor;
    }
    if (scaling.type == "yarn") {
        used.beta_fast = scaling.beta_fast;
        used.beta_slow = scaling.beta_slow;
        used.attention_factor = scaling.attention_factor;
    }
    require(problems, scaling == used, "[model] rope_scaling: type = ", toml_text(scaling.type),
            " does not use every key that is set; leave out those of the other types");
    require(problems, scaling.high_freq_factor > scaling.low_freq_factor,
            "[model] rope_scaling.high_freq_factor = ", toml_text(scaling.high_freq_factor),
            ": must be above low_freq_factor = ", toml_text(scaling.low_freq_factor));
    require(problems, scaling.beta_fast > scaling.beta_slow,
            "[model] rope_scaling.beta_fast = ", toml_text(scaling.beta_fast),
            ": must be above beta_slow = ", toml_text(scaling.beta_slow));
}

void check_mixture(const ModelSpec& m, Problems& problems) {
    const MixtureSpec& e = m.moe;
    if (e.experts == 0) {
        require(problems, e == MixtureSpec{},
                "[model] moe: its other keys have no effect while experts = 0; set experts or leave them out");
        return;
    }
    require(problems, m.family != Family::gpt2 && m.family != Family::mlp, "[model] moe.experts = ", e.experts,
            ": the family ", name_of(m.family), " has no mixture of experts; set 0");
    require(problems, !m.mlp_bias, "[model] mlp_bias = true: experts have no biases; set false");
    require(problems, e.top_k >= 1 && e.top_k <= e.experts, "[model] moe.top_k = ", e.top_k,
            ": must be from 1 to experts = ", e.experts);
    require(problems, e.ffn >= 1, "[model] moe.ffn = ", e.ffn, ": must be at least 1");
    require(problems, !e.shared_gate || e.shared_ffn > 0,
            "[model] moe.shared_gate = true: there is no shared expert; set shared_ffn, or false");
    require(problems, e.experts % e.groups == 0, "[model] moe.groups = ", e.groups,
            ": must divide experts = ", e.experts,
            nearest_divisors("; nearest: ", e.experts, e.groups, "model.moe.groups"));
    require(problems, e.top_groups <= e.groups && (e.groups > 1 || e.top_groups == 1),
            "[model] moe.top_groups = ", e.top_groups, ": must be at most groups = ", e.groups);
    if (e.groups > 1 && e.experts % e.groups == 0 && e.top_groups <= e.groups) {
        require(problems, e.top_k <= product({e.experts / e.groups, e.top_groups}), "[model] moe.top_k = ", e.top_k,
                ": the ", e.top_groups, " groups of ", e.experts / e.groups,
                " experts that a token may go to have fewer; set top_groups higher, or top_k lower");
        require(problems, e.top_k % e.top_groups == 0, "[model] moe.top_k = ", e.top_k,
                ": must be a multiple of top_groups = ", e.top_groups, ", as many experts being wanted of each group");
    }
    require(problems, e.capacity_factor > 0 || e.drop == "probability", "[model] moe.drop = ", toml_text(e.drop),
            ": nothing is dropped while capacity_factor = 0; set it or leave drop out");
    require(problems, (e.aux_loss == "none") == (e.aux_coef == 0), "[model] moe.aux_loss = ", toml_text(e.aux_loss),
            " with aux_coef = ", toml_text(e.aux_coef), ": one says that there is such a loss and the other that not");
    const bool all = !e.layers.empty() && check_layer_list(m, "moe.layers", e.layers, problems) ==
                                              std::vector<LayerRange>{{0, m.layers - 1}};
    require(problems, !all, "[model] moe.layers = ", toml_text(e.layers), ": these are all layers; leave it out");
}

}  // namespace

void check_model(const ModelSpec& m, Problems& problems) {
    if (m.family == Family::mlp)
        check_mlp(m, problems);
    else
        check_transformer(m, problems);
    check_positions(m, problems);
    if (m.family == Family::llama) check_window(m, problems);
    if (m.family == Family::lfm2)
        check_lfm2(m, problems);
    else
        check_no_convolutions(m, problems);
    check_rope_scaling(m.rope_scaling, problems);
    check_mixture(m, problems);
}

std::vector<std::string> model_problems(const ModelSpec& model) {
    Problems problems;
    const RunSpec run{.model = model};
    for_each_field(run, [&](const Field& field, const auto& value) {
        const auto problem = field.section == "model" ? range_problem(field, value) : std::nullopt;
        if (problem) problems.push_back(*problem);
    });
    check_model(model, problems);
    return problems;
}

}  // namespace tutti::spec
