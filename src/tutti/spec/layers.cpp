#include "tutti/spec/layers.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "tutti/base/digits.h"
#include "tutti/base/error.h"
#include "tutti/base/strings.h"
#include "tutti/base/to_size.h"
#include "tutti/spec/fields.h"

namespace tutti::spec {

namespace {

int64_t layer_number(std::string_view text, const std::string& whole) {
    const auto number = parse_number<int64_t>(text);
    check<UsageError>(number && *number >= 0, "\"", whole,
                      "\" is not a list of layers; write numbers and ranges from 0, as in \"0,2-5\"");
    return *number;
}

bool contains(const std::vector<LayerRange>& ranges, int64_t layer) {
    return std::any_of(ranges.begin(), ranges.end(),
                       [&](const LayerRange& range) { return range.first <= layer && layer <= range.last; });
}

}  // namespace

std::vector<LayerRange> layer_ranges(const std::string& text) {
    std::vector<LayerRange> all;
    if (text.empty()) return {};
    for (const std::string_view part : split(text, ',')) {
        const size_t dash = std::min(part.find('-'), part.size());
        const int64_t first = layer_number(part.substr(0, dash), text);
        const int64_t last = dash == part.size() ? first : layer_number(part.substr(dash + 1), text);
        all.push_back({std::min(first, last), std::max(first, last)});
    }
    std::sort(all.begin(), all.end(), [](const LayerRange& a, const LayerRange& b) { return a.first < b.first; });
    std::vector<LayerRange> apart;
    for (const LayerRange& range : all) {
        if (!apart.empty() && range.first - 1 <= apart.back().last)
            apart.back().last = std::max(apart.back().last, range.last);
        else
            apart.push_back(range);
    }
    return apart;
}

std::vector<LayerRange> layer_ranges(const std::vector<bool>& listed) {
    std::vector<LayerRange> ranges;
    for (size_t i = 0; i < listed.size(); ++i) {
        const auto layer = static_cast<int64_t>(i);
        if (!listed[i]) continue;
        if (!ranges.empty() && ranges.back().last + 1 == layer)
            ranges.back().last = layer;
        else
            ranges.push_back({layer, layer});
    }
    return ranges;
}

std::string to_text(const std::vector<LayerRange>& ranges) {
    return joined(ranges, ",", [](const LayerRange& range) {
        return range.last > range.first ? concat(range.first, '-', range.last) : concat(range.first);
    });
}

std::vector<double> number_list(const std::string& text) {
    if (text.empty()) return {};
    const auto numbers = parse_numbers<double>(text);
    check<UsageError>(numbers && std::ranges::all_of(*numbers, [](double x) { return std::isfinite(x); }), "\"", text,
                      "\" is not a list of numbers; write them as in \"1,1.25\"");
    return *numbers;
}

std::string list_text(const std::vector<double>& numbers) {
    return joined(numbers, ",", [](double number) {
        std::array<char, 32> digits;
        return std::string(digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr);
    });
}

namespace {

std::optional<RopeSpec> rope_of(const ModelSpec& m, int64_t i, bool windowed) {
    if (!traits_of(m).rotary || contains(layer_ranges(m.nope_layers), i)) return std::nullopt;
    RopeSpec rope{.theta = m.rope_theta,
                  .dims = m.rope_dims > 0 ? m.rope_dims : m.head_dim,
                  .adjacent = m.rope_adjacent,
                  .scaling = m.rope_scaling,
                  .query_growth = m.query_growth};
    if (windowed && m.window_rope_theta > 0) {
        rope.theta = m.window_rope_theta;
        rope.scaling = {};
    }
    return rope;
}

std::optional<LatentSpec> latent_of(const ModelSpec& m) {
    if (m.kv_latent == 0) return std::nullopt;
    return LatentSpec{.kv = m.kv_latent, .q = m.q_latent};
}

// YaRN in latent attention: the scores have the square of the factor that queries and keys had without their parts that
// are not rotated (DeepSeek-AI 2024, DeepSeek-V2, and its modeling_deepseek.py).
double score_scale_of(const ModelSpec& m) {
    const double all = m.rope_scaling.factor > 0 ? m.rope_scaling.mscale_all_dim : 0;
    if (m.kv_latent == 0 || all == 0) return m.score_scale;
    const double factor = yarn_mscale(all, m.rope_scaling.factor);
    const double scale = m.score_scale > 0 ? m.score_scale : 1 / std::sqrt(static_cast<double>(m.head_dim));
    return scale * factor * factor;
}

}  // namespace

namespace {

AttentionSpec attention_of(const ModelSpec& m, int64_t i, const Multipliers& scales) {
    const FamilyTraits& traits = traits_of(m);
    const bool windowed = m.window > 0 && (m.window_layers.empty() || contains(layer_ranges(m.window_layers), i));
    AttentionSpec a{.heads = m.heads,
                    .kv_heads = m.kv_heads,
                    .head_dim = m.head_dim,
                    .value_dim = m.value_dim > 0 ? m.value_dim : m.head_dim,
                    .latent = latent_of(m),
                    .window = windowed ? m.window : 0,
                    .bias = m.qkv_bias || traits.biases,
                    .output_bias = m.output_bias || traits.biases,
                    .head_norm = m.head_norm,
                    .width_norm = m.width_norm,
                    .score_scale = score_scale_of(m),
                    .score_cap = m.score_cap,
                    .sinks = m.sinks,
                    .output_gate = m.attention_gate,
                    .rope = rope_of(m, i, windowed)};
    if (scales == Multipliers{}) return a;
    // Without biases factors of queries, keys and values are factors of the scores and of the output.
    const double in = scales.attention_in, scale = 1 / std::sqrt(static_cast<double>(m.head_dim));
    a.score_scale = (a.score_scale > 0 ? a.score_scale : scale) * in * in * scales.key;
    a.output_scale = in * scales.attention_out;
    return a;
}

ScanSpec scan_of(const ModelSpec& m, const Multipliers& scales) {
    ScanSpec scan{.heads = m.scan_heads,
                  .head_dim = m.scan_head_dim,
                  .groups = m.scan_groups,
                  .state = m.scan_state,
                  .kernel = m.conv_kernel,
                  .conv_bias = m.conv_bias,
                  .step_min = m.scan_step_min,
                  .step_max = m.scan_step_max,
                  .norm = m.scan_norm,
                  .scales = scales.scan,
                  .output_scale = scales.scan_out};
    for (double& scale : scan.scales) scale *= scales.scan_in;
    return scan;
}

}  // namespace

Multipliers multipliers_of(const std::string& text) {
    Multipliers m;
    if (text.empty()) return m;
    const std::vector<double> all = number_list(text);
    double* const places[] = {&m.key,     &m.attention_in, &m.attention_out, &m.scan_in, &m.scan_out, &m.scan[0],
                              &m.scan[1], &m.scan[2],      &m.scan[3],       &m.scan[4], &m.gate,     &m.down};
    check<UsageError>(all.size() == std::size(places), "\"", text, "\" has ", all.size(),
                      " numbers; required: ", std::size(places),
                      ", of key, attention_in, attention_out, scan_in, scan_out, z, x, B, C, dt, gate, "
                      "down, or \"\"");
    for (size_t i = 0; i < all.size(); ++i) *places[i] = all[i];
    return m;
}

std::string to_text(const Multipliers& m) {
    if (m == Multipliers{}) return "";
    std::vector<double> all = {m.key, m.attention_in, m.attention_out, m.scan_in, m.scan_out};
    all.insert(all.end(), m.scan.begin(), m.scan.end());
    all.insert(all.end(), {m.gate, m.down});
    return list_text(all);
}

bool has_scan(const ModelSpec& m) { return !m.scan_layers.empty() || m.pattern.find('M') != std::string::npos; }

double yarn_mscale(double scale, double factor) { return factor <= 1 ? 1 : 0.1 * scale * std::log(factor) + 1; }

namespace {

// The parts of a block that predicts a later token, of a model with a pattern.
std::string parts_of_a_depth(const ModelSpec& m) {
    std::string parts;
    for (const char* choice : {"*M", "E-"}) {
        const std::string_view either = choice;
        const auto part = std::ranges::find_if(either, [&](char c) { return m.pattern.find(c) != std::string::npos; });
        if (part != either.end()) parts += *part;
    }
    return parts;
}

// The layer that layer i is like; itself up to the last one.
int64_t model_of(const ModelSpec& m, int64_t i) {
    if (i < m.layers) return i;
    if (!m.pattern.empty()) {
        const std::string parts = parts_of_a_depth(m);
        return parts.empty() ? m.layers - 1
                             : static_cast<int64_t>(m.pattern.rfind(parts[to_size(i - m.layers) % parts.size()]));
    }
    for (int64_t like = m.layers - 1; like >= 0; --like)
        if (layer(m, like).attention()) return like;
    return m.layers - 1;
}

}  // namespace

int64_t layers_of_a_depth(const ModelSpec& m) {
    return m.pattern.empty() ? 1 : static_cast<int64_t>(parts_of_a_depth(m).size());
}

int64_t layers_behind(const ModelSpec& m) { return m.mtp_depth * layers_of_a_depth(m); }

LayerSpec layer(const ModelSpec& m, int64_t of) {
    const int64_t i = model_of(m, of);
    const FamilyTraits& traits = traits_of(m);
    LayerSpec layer;
    layer.norm_before = m.norms != "post";
    layer.norm_behind = m.norms != "pre";
    if (m.residual_scale > 0) layer.residual_scale = m.residual_scale;
    const auto part = to_size(i) < m.pattern.size() ? m.pattern[to_size(i)] : ' ';
    const Multipliers scales = multipliers_of(m.multipliers);
    const bool scans = part == 'M' || contains(layer_ranges(m.scan_layers), i);
    if (contains(layer_ranges(m.conv_layers), i))
        layer.mixer = ConvolutionSpec{m.conv_kernel, m.conv_bias};
    else if (contains(layer_ranges(m.delta_layers), i))
        layer.mixer =
            DeltaSpec{m.delta_key_heads, m.delta_value_heads, m.delta_key_dim, m.delta_value_dim, m.conv_kernel};
    else if (scans && m.scan_beside)
        layer.mixer = BesideSpec{attention_of(m, i, scales), scan_of(m, scales)};
    else if (scans)
        layer.mixer = scan_of(m, scales);
    else if (traits.tokens && part != '-' && part != 'E')
        layer.mixer = attention_of(m, i, scales);
    layer.gate = {m.gate, m.gate_limit, traits.gated && m.gate != "relu2"};
    const std::string& mixtures = m.moe.layers;
    const bool experts = part == ' ' ? mixtures.empty() || contains(layer_ranges(mixtures), i) : part == 'E';
    if (m.moe.experts > 0 && experts) {
        MixtureSpec moe = m.moe;
        moe.epsilon = traits.router_epsilon;
        layer.feed_forward = std::move(moe);
    } else if (part == ' ' || part == '-') {
        layer.feed_forward = MlpSpec{
            .ffn = m.ffn, .bias = m.mlp_bias || traits.biases, .gate_scale = scales.gate, .output_scale = scales.down};
    }
    return layer;
}

std::vector<LayerSpec> all_layers(const ModelSpec& model) {
    std::vector<LayerSpec> layers;
    for (int64_t i = 0; i < model.layers; ++i) layers.push_back(layer(model, i));
    return layers;
}

std::vector<int64_t> layers_with_routers(const ModelSpec& model) {
    std::vector<int64_t> with = layers_with_experts(model);
    for (int64_t i = model.layers; i < model.layers + layers_behind(model); ++i)
        if (layer(model, i).mixture()) with.push_back(i);
    return with;
}

std::vector<int64_t> layers_with_experts(const ModelSpec& model) {
    std::vector<int64_t> with;
    for (int64_t i = 0; i < model.layers; ++i)
        if (layer(model, i).mixture()) with.push_back(i);
    return with;
}

Recompute recompute_of(const std::string& policy, int64_t layers) {
    if (policy == "none") return {};
    if (policy == "selective") return {.selective = true};
    if (policy == "full") return {.segment = 1};
    if (policy == "sqrt")
        return {.segment = std::max<int64_t>(1, std::llround(std::sqrt(static_cast<double>(layers))))};
    constexpr std::string_view kEvery = "every:";
    if (policy.starts_with(kEvery)) {
        const auto every = parse_number<int64_t>(std::string_view(policy).substr(kEvery.size()));
        if (every && *every >= 1 && *every <= layers) return {.segment = *every};
    }
    throw UsageError(
        concat("[recompute] policy = ", toml_text(policy),
               ": must be none, selective, full, sqrt or every:N with N from 1 to [model] layers = ", layers));
}

}  // namespace tutti::spec
