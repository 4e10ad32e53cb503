// spec/variants.cpp: the table of spec/variants.h, and what reads and writes config.json by it. Facts of each class are
// those of its configuration_*.py and modeling_*.py in huggingface/transformers.
#include "tutti/spec/variants.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/to_size.h"
#include "tutti/spec/hf/classes.h"
#include "tutti/spec/hf/config.h"
#include "tutti/spec/hf/keys.h"
#include "tutti/spec/layers.h"

namespace tutti::spec {

namespace {

// A key that is a number of the model.
struct NumberKey {
    const char* key;
    double ModelSpec::*field;
    enum class As {
        factor,        // 1, or no key, is the field's 0
        divisor,       // the field is 1 / value; 1, or no key, is its 0
        cap,           // null, or no key, is the field's 0; 0 is refused
        given_cap,     // the same, but files must have the key: the class's own default is a cap
        inverse_root,  // the field is value^(-1/2); required
    } as;
};
using As = NumberKey::As;

struct BooleanKey {
    const char* key;
    bool ModelSpec::*field;
    bool absent;
};

// Which layers have the window.
enum class Windows {
    none,    // the class has none
    all,     // where sliding_window is a number
    others,  // layer_types, else the layers i with (i + 1) % period != 0
};

enum class Tied { yes, no, required };  // tie_word_embeddings of files without the key

struct Row {
    Variant names;
    void (*set)(ModelSpec&) = [](ModelSpec&) {};  // what all models of the class have
    const char* activation = "hidden_act";
    std::vector<const char*> activations = {"silu"};  // their names for the row's gate
    int64_t head_dim = 0;                             // of files without the key; 0: hidden_size / heads
    const char* epsilon = "rms_norm_eps";
    int64_t (*layers)(Keys&) = [](Keys&) -> int64_t { return 0; };  // of files without num_hidden_layers; 0: required
    bool attention = true;                                          // without: `read` takes all sizes
    Tied tied = Tied::no;
    RopeKeys rope = {};
    Windows windows = Windows::none;
    int64_t period = 0;                // of Windows::others
    const char* period_key = nullptr;  // which may say another period
    std::vector<NumberKey> numbers = {};
    std::vector<BooleanKey> booleans = {};
    // Keys that the class does not read, or Tutti does not have: any other value would mean something.
    std::vector<std::pair<const char*, Json>> only = {};
    void (*read)(Keys&, ModelSpec&) = [](Keys&, ModelSpec&) {};  // what is left
    void (*write)(const ModelSpec&, Json&) = [](const ModelSpec&, Json&) {};
};

std::vector<LayerRange> layers_where(const ModelSpec& m, const auto& is) {
    std::vector<bool> listed;
    for (int64_t i = 0; i < m.layers; ++i) listed.push_back(is(i));
    return layer_ranges(listed);
}

// A list of layers as a field of ModelSpec says it: "" for all of them where `all_is_empty`.
std::string field_of(const ModelSpec& m, const std::vector<LayerRange>& layers) {
    return layers == std::vector<LayerRange>{{0, m.layers - 1}} ? "" : to_text(layers);
}

// --- what single rows read and write besides -------------------------------------------------------------------------

// no_rope_layers: 1 for a layer with RoPE, in spite of the name; else all but every no_rope_layer_interval-th.
void read_smollm3(Keys& keys, ModelSpec& m) {
    const int64_t interval = keys.integer_or("no_rope_layer_interval", 4);
    const Json* list = keys.list("no_rope_layers", m.layers, "numbers, 1 for a layer with RoPE and 0 for one without",
                                 [](const Json& x) { return x.is_integer(0, 1); });
    m.nope_layers = to_text(layers_where(
        m, [&](int64_t i) { return list ? (*list)[to_size(i)].get<int64_t>() == 0 : (i + 1) % interval == 0; }));
    keys.list("layer_types", m.layers, "times full_attention", [](const Json& x) { return x == "full_attention"; });
    keys.take("max_window_layers");  // not read
}
void write_smollm3(const ModelSpec& m, Json& json) {
    json["no_rope_layers"] = Json::array();
    for (const LayerSpec& layer : all_layers(m)) json["no_rope_layers"].push_back(layer.attention()->rope ? 1 : 0);
    json["use_sliding_window"] = false;
    json["sliding_window"] = nullptr;
}

// In a model with a window only the layers that have it rotate.
void read_exaone4(Keys&, ModelSpec& m) {
    if (m.window == 0) return;
    const std::vector<LayerRange> windowed = layer_ranges(m.window_layers);
    if (m.window_layers.empty()) return;
    m.nope_layers = to_text(layers_where(m, [&](int64_t i) {
        return std::ranges::none_of(windowed, [&](const LayerRange& r) { return r.first <= i && i <= r.last; });
    }));
}

// The class makes the sliding layers' theta its own default where a file has transformers 4's keys.
void read_olmo3(Keys& keys, ModelSpec& m) {
    if (keys.take("rope_parameters") == nullptr) {
        if (m.rope_theta != 500000)
            keys.problem("rope_theta",
                         "layers with a window have 500000 whatever this key says; this Tutti reads "
                         "other values from rope_parameters only");
        m.window_rope_theta = m.rope_theta;
    }
    if (m.window == 0 || (m.window_rope_theta == m.rope_theta && m.rope_scaling.factor == 0)) m.window_rope_theta = 0;
}

void read_gemma3(Keys& keys, ModelSpec& m) {
    const double local = keys.number_or("rope_local_base_freq", 10000);
    if (keys.take("rope_parameters") == nullptr) m.window_rope_theta = local;
    if (m.window == 0 || (m.window_rope_theta == m.rope_theta && m.rope_scaling.factor == 0)) m.window_rope_theta = 0;
}

// An object for each kind of layer, as transformers 5 has them.
Json rope_by_kind(const ModelSpec& m, const Json& scaling) {
    Json full = scaling.is_null() ? Json{{"rope_type", "default"}} : scaling;
    full["rope_theta"] = m.rope_theta;
    const double sliding = m.window_rope_theta > 0 ? m.window_rope_theta : m.rope_theta;
    return Json{{"full_attention", full},
                {"sliding_attention", Json{{"rope_type", "default"}, {"rope_theta", sliding}}}};
}

void write_by_kind(const ModelSpec& m, Json& json) {
    json["rope_parameters"] = rope_by_kind(m, json["rope_scaling"]);
    json.erase("rope_scaling");
    json.erase("rope_theta");
}

void write_ministral3(const ModelSpec& m, Json& json) {
    Json rope = json["rope_scaling"];
    if (rope.is_null()) rope = Json{{"rope_type", "default"}};
    rope["rope_theta"] = m.rope_theta;
    rope["llama_4_scaling_beta"] = m.query_growth;
    json["rope_parameters"] = rope;
    json.erase("rope_scaling");
    json.erase("rope_theta");
}

void write_partial(const ModelSpec& m, Json& json) {
    const int64_t dims = m.rope_dims > 0 ? m.rope_dims : m.head_dim;
    json["partial_rotary_factor"] = static_cast<double>(dims) / static_cast<double>(m.head_dim);
}

void write_phi3(const ModelSpec& m, Json& json) {
    write_partial(m, json);
    if (m.rope_scaling.factor > 0) json["original_max_position_embeddings"] = m.rope_scaling.original_max_positions;
}

// --- what classes have -----------------------------------------------------------------------------------------------

void set_gemma(ModelSpec& m) {
    m.norm_offset = m.embedding_sqrt = true;
    m.gate = "gelu";
}
void set_gemma2(ModelSpec& m) {
    set_gemma(m);
    m.norms = "sandwich";
}
void set_gemma3(ModelSpec& m) {
    set_gemma2(m);
    m.head_norm = true;
}
void set_olmo2(ModelSpec& m) {
    m.norms = "post";
    m.width_norm = true;
}
void set_exaone4(ModelSpec& m) {
    m.norms = "post";
    m.head_norm = true;
}
void set_glm(ModelSpec& m) { m.rope_adjacent = true; }
void set_glm4(ModelSpec& m) {
    set_glm(m);
    m.norms = "sandwich";
}

void set_deepseek2(ModelSpec& m) {
    m.rope_adjacent = true;
    m.moe.normalise = false;
}
void set_deepseek3(ModelSpec& m) {
    m.rope_adjacent = true;
    m.moe.score = "sigmoid";
    m.moe.expert_bias = true;
}

void set_qwen3_next(ModelSpec& m) { m.norm_offset = m.head_norm = m.attention_gate = true; }

void set_nemotron(ModelSpec& m) { m.gate = "relu2"; }

void set_gpt_oss(ModelSpec& m) {
    m.gate = "clamped";
    m.sinks = m.moe.bias = m.moe.router_bias = true;
}

constexpr auto kNoBias = [](const char* key) { return std::pair<const char*, Json>(key, false); };
constexpr auto kNone = [](const char* key) { return std::pair<const char*, Json>(key, nullptr); };

std::vector<Row> make_rows() {
    const std::vector<NumberKey> granite = {{"embedding_multiplier", &ModelSpec::embedding_scale, As::factor},
                                            {"residual_multiplier", &ModelSpec::residual_scale, As::factor},
                                            {"attention_multiplier", &ModelSpec::score_scale, As::factor},
                                            {"logits_scaling", &ModelSpec::logit_divisor, As::factor}};
    const NumberKey scalar = {"query_pre_attn_scalar", &ModelSpec::score_scale, As::inverse_root};
    const std::vector<BooleanKey> all_biases = {{"attention_bias", &ModelSpec::qkv_bias, false},
                                                {"attention_bias", &ModelSpec::output_bias, false}};
    const std::vector<const char*> gelu = {"gelu_pytorch_tanh"};
    const auto unidirectional = kNoBias("use_bidirectional_attention");
    const auto latent_class = [](const char* name, const char* architecture) {
        return Variant{.name = name,
                       .architecture = architecture,
                       .shared_expert = "shared_experts",
                       .expert_bias = "gate.e_score_correction_bias",
                       .later = LaterFiles::layers};
    };
    const std::vector<std::pair<const char*, Json>> gated = {kNoBias("attention_bias"), {"attn_output_gate", true}};
    const std::vector<std::pair<const char*, Json>> noaux = {
        kNoBias("attention_bias"), {"scoring_func", "sigmoid"}, {"topk_method", "noaux_tc"}};
    return {
        {.names = {.name = "gemma", .architecture = "GemmaForCausalLM"},
         .set = set_gemma,
         .activations = {"gelu_pytorch_tanh", "gelu"},  // the class takes "gelu" for the other
         .head_dim = 256,
         .tied = Tied::yes,
         .booleans = all_biases,
         .only = {unidirectional, {"hidden_activation", "gelu_pytorch_tanh"}}},
        {.names = {.name = "gemma2", .architecture = "Gemma2ForCausalLM"},
         .set = set_gemma2,
         .activation = "hidden_activation",
         .activations = gelu,
         .head_dim = 256,
         .tied = Tied::yes,
         .windows = Windows::others,
         .period = 2,
         .numbers = {scalar,
                     {"final_logit_softcapping", &ModelSpec::logit_cap, As::given_cap},
                     {"attn_logit_softcapping", &ModelSpec::score_cap, As::given_cap}},
         .booleans = all_biases,
         .only = {unidirectional, {"hidden_act", "gelu_pytorch_tanh"}}},
        {.names = {.name = "gemma3_text", .architecture = "Gemma3ForCausalLM"},
         .set = set_gemma3,
         .activation = "hidden_activation",
         .activations = gelu,
         .head_dim = 256,
         .tied = Tied::yes,
         .rope = {.theta = 1000000, .by_layer_kind = true},
         .windows = Windows::others,
         .period = 6,
         .period_key = "sliding_window_pattern",
         .numbers = {scalar, {"final_logit_softcapping", &ModelSpec::logit_cap, As::cap}},
         .booleans = all_biases,
         .only = {unidirectional, kNone("attn_logit_softcapping"), {"hidden_act", "gelu_pytorch_tanh"}},
         .read = read_gemma3,
         .write = write_by_kind},
        {.names = {.name = "phi3", .architecture = "Phi3ForCausalLM", .fused_qkv = true, .fused_gate_up = true},
         .rope = {.partial = 1, .longrope = true},
         .windows = Windows::all,
         .only = {kNoBias("attention_bias")},
         .write = write_phi3},
        {.names = {.name = "olmo2", .architecture = "Olmo2ForCausalLM"},
         .set = set_olmo2,
         .booleans = all_biases,
         .only = {kNone("clip_qkv")}},
        {.names = {.name = "olmo3", .architecture = "Olmo3ForCausalLM"},
         .set = set_olmo2,
         .rope = {.theta = 500000, .by_layer_kind = true},
         .windows = Windows::others,
         .period = 4,
         .booleans = all_biases,
         .only = {kNone("clip_qkv")},
         .read = read_olmo3,
         .write = write_by_kind},
        {.names = {.name = "smollm3", .architecture = "SmolLM3ForCausalLM"},
         .tied = Tied::yes,
         .rope = {.theta = 2000000},
         .booleans = {{"attention_bias", &ModelSpec::qkv_bias, false},
                      {"attention_bias", &ModelSpec::output_bias, false},
                      {"mlp_bias", &ModelSpec::mlp_bias, false}},
         .only = {kNoBias("use_sliding_window"), kNone("sliding_window")},
         .read = read_smollm3,
         .write = write_smollm3},
        {.names = {.name = "granite", .architecture = "GraniteForCausalLM"},
         .numbers = granite,
         .booleans = {{"attention_bias", &ModelSpec::qkv_bias, false},
                      {"attention_bias", &ModelSpec::output_bias, false},
                      {"mlp_bias", &ModelSpec::mlp_bias, false}},
         // The scale of scores is never D^(-1/2), which the field's 0 would mean.
         .read = [](Keys&, ModelSpec& m) { m.score_scale = m.score_scale == 0 ? 1 : m.score_scale; }},
        {.names = {.name = "glm", .architecture = "GlmForCausalLM", .fused_gate_up = true},
         .set = set_glm,
         .head_dim = 128,
         .rope = {.partial = 0.5},
         .booleans = {{"attention_bias", &ModelSpec::qkv_bias, true}},
         .write = write_partial},
        {.names = {.name = "glm4",
                   .architecture = "Glm4ForCausalLM",
                   .behind_attention = "post_self_attn_layernorm",
                   .before_mlp = "post_attention_layernorm",
                   .behind_mlp = "post_mlp_layernorm",
                   .fused_gate_up = true},
         .set = set_glm4,
         .head_dim = 128,
         .rope = {.partial = 0.5},
         .booleans = {{"attention_bias", &ModelSpec::qkv_bias, true}},
         .write = write_partial},
        {.names = {.name = "ministral3", .architecture = "Ministral3ForCausalLM"},
         .head_dim = 128,
         .tied = Tied::required,
         .rope = {.growth = true, .required = true},
         .windows = Windows::all,
         .write = write_ministral3},
        {.names = {.name = "seed_oss", .architecture = "SeedOssForCausalLM"},
         .head_dim = 128,
         .booleans = {{"attention_bias", &ModelSpec::qkv_bias, true},
                      {"attention_out_bias", &ModelSpec::output_bias, false},
                      {"mlp_bias", &ModelSpec::mlp_bias, false}},
         .only = {kNone("sliding_window")}},
        {.names = {.name = "exaone4", .architecture = "Exaone4ForCausalLM"},
         .set = set_exaone4,
         .windows = Windows::others,
         .period = 4,
         .period_key = "sliding_window_pattern",
         .read = read_exaone4},
        {.names =
             {.name = "gpt_oss", .architecture = "GptOssForCausalLM", .router = "router", .experts_together = true},
         .set = set_gpt_oss,
         .head_dim = 64,
         .rope = {.theta = 150000, .partial = 0, .required = true},
         .windows = Windows::others,
         .period = 2,
         .booleans = {{"attention_bias", &ModelSpec::qkv_bias, true},
                      {"attention_bias", &ModelSpec::output_bias, true}},
         .read = read_gpt_oss,
         .write = write_gpt_oss},
        {.names = {.name = "qwen3_next",
                   .architecture = "Qwen3NextForCausalLM",
                   .delta_by_key_head = true,
                   .later = LaterFiles::fused},
         .set = set_qwen3_next,
         .head_dim = 256,
         .rope = {.partial = 0.25},
         .only = gated,
         .read = read_qwen3_next,
         .write = write_qwen3_next},
        {.names = {.name = "qwen3_5_text", .architecture = "Qwen3_5ForCausalLM", .later = LaterFiles::fused},
         .set = set_qwen3_next,
         .head_dim = 256,
         .rope = {.partial = 0.25, .mrope = true},
         .only = gated,
         .read = read_delta_rule,
         .write = write_delta_rule},
        {.names = {.name = "qwen3_5_moe_text", .architecture = "Qwen3_5MoeForCausalLM", .later = LaterFiles::fused},
         .set = set_qwen3_next,
         .head_dim = 256,
         .rope = {.partial = 0.25, .mrope = true},
         .only = gated,
         .read = read_qwen3_5_moe,
         .write = write_qwen3_5_moe},
        {.names = {.name = "granitemoehybrid", .architecture = "GraniteMoeHybridForCausalLM", .pairs = true},
         .numbers = granite,
         .booleans = all_biases,
         .read = read_granite4,
         .write = write_granite4},
        {.names = {.name = "nemotron_h",
                   .architecture = "NemotronHForCausalLM",
                   .prefix = "backbone",
                   .embedding = "embeddings",
                   .final_norm = "norm_f",
                   .shared_expert = "shared_experts",
                   .expert_bias = "gate.e_score_correction_bias",
                   .later = LaterFiles::parts},
         .set = set_nemotron,
         .activation = "mlp_hidden_act",
         .activations = {"relu2"},
         .head_dim = 128,
         .epsilon = "layer_norm_epsilon",
         .layers = nemotron_layers,
         .only = {kNone("sliding_window")},
         .read = read_nemotron,
         .write = write_nemotron},
        {.names = {.name = "falcon_h1",
                   .architecture = "FalconH1ForCausalLM",
                   .before_mlp_alone = "pre_ff_layernorm",
                   .final_norm = "final_layernorm",
                   .mlp = "feed_forward"},
         .numbers = {{"embedding_multiplier", &ModelSpec::embedding_scale, As::factor},
                     {"lm_head_multiplier", &ModelSpec::logit_divisor, As::divisor}},
         .booleans = {{"mlp_bias", &ModelSpec::mlp_bias, false}},
         .read = read_falcon,
         .write = write_falcon},
        {.names = {.name = "mamba2",
                   .architecture = "Mamba2ForCausalLM",
                   .prefix = "backbone",
                   .embedding = "embeddings",
                   .final_norm = "norm_f"},
         .set = set_nemotron,
         .epsilon = "layer_norm_epsilon",
         .attention = false,
         .read = read_mamba2,
         .write = write_mamba2},
        {.names = latent_class("deepseek_v2", "DeepseekV2ForCausalLM"),
         .set = set_deepseek2,
         .rope = {.partial = 0, .mscales = true},
         .only = {kNoBias("attention_bias"), kNoBias("norm_topk_prob"), {"scoring_func", "softmax"}},
         .read = read_deepseek2,
         .write = write_deepseek2},
        {.names = latent_class("deepseek_v3", "DeepseekV3ForCausalLM"),
         .set = set_deepseek3,
         .rope = {.partial = 0, .mscales = true},
         .only = noaux,
         .read = read_deepseek3,
         .write = write_deepseek3},
        {.names = latent_class("kimi_k2", "DeepseekV3ForCausalLM"),  // a name of its own for the same class
         .set = set_deepseek3,
         .rope = {.partial = 0, .mscales = true},
         .only = noaux,
         .read = read_deepseek3,
         .write = write_deepseek3},
        {.names = latent_class("glm4_moe_lite", "Glm4MoeLiteForCausalLM"),
         .set = set_deepseek3,
         .rope = {.partial = 0, .mscales = true},
         .only = noaux,
         .read = read_glm4_moe_lite,
         .write = write_glm4_moe_lite},
    };
}

std::span<const Row> rows() {
    static const std::vector<Row> kRows = make_rows();
    return kRows;
}

const Row* find_row(std::string_view name) {
    const auto row = std::ranges::find(rows(), name, [](const Row& r) { return r.names.name; });
    return row == rows().end() ? nullptr : &*row;
}

const Row& row_of(std::string_view name) {
    const Row* row = find_row(name);
    check(row != nullptr, "no variant ", name);
    return *row;
}

// --- reading ---------------------------------------------------------------------------------------------------------

// The period that a key says: a number, or a text such as "LLLG", whose last layer of a period is the full one.
int64_t period_of(Keys& keys, const Row& row, int64_t window) {
    const Json* value = row.period_key ? keys.take(row.period_key) : nullptr;
    if (value == nullptr || (*value == 0 && window == 0)) return row.period;
    if (value->is_integer(1, 1 << 20)) return value->get<int64_t>();
    if (value->is_string()) {
        const std::string& text = value->text();
        if (!text.empty() && text == std::string(text.size() - 1, 'L') + "G") return static_cast<int64_t>(text.size());
    }
    keys.problem(row.period_key, "must be a number of layers, or L for each layer with a window and a G: \"LLLG\"");
    return row.period;
}

void read_windows(Keys& keys, ModelSpec& m, const Row& row) {
    if (row.windows == Windows::none) return;
    const Json* given = keys.take("sliding_window");
    const int64_t window = given ? keys.integer("sliding_window") : 0;
    if (row.windows == Windows::all) {
        m.window = window;
        keys.take("layer_types");  // not read by these classes
        return;
    }
    if (!keys.has("sliding_window")) keys.problem("sliding_window", "required, a number or null");
    const int64_t period = period_of(keys, row, window);
    const auto slides = keys.named("layer_types", m.layers, "sliding_attention", "full_attention");
    const std::vector<LayerRange> sliding = layers_where(
        m, [&](int64_t i) { return slides ? (*slides)[to_size(i)] : window > 0 && (i + 1) % period != 0; });
    if (sliding.empty()) return;
    if (window == 0) keys.problem("layer_types", "names layers with sliding_attention, and there is no sliding_window");
    m.window = window;
    m.window_layers = field_of(m, sliding);
}

void read_number(Keys& keys, ModelSpec& m, const NumberKey& n) {
    double& field = m.*n.field;
    if (n.as == As::inverse_root) {
        const double value = keys.number(n.key);
        if (value <= 0) keys.problem(n.key, "must be above 0");
        field = 1 / std::sqrt(value);
        return;
    }
    if (n.as == As::given_cap && !keys.has(n.key)) keys.problem(n.key, "required, a number or null");
    const bool one = n.as == As::factor || n.as == As::divisor;
    field = keys.number_or(n.key, one ? 1 : 0);
    if (field == 0 && keys.take(n.key) != nullptr) return keys.problem(n.key, "must be above 0");
    if (n.as == As::divisor) field = 1 / field;
    if (one && field == 1) field = 0;
}

}  // namespace

const Variant& variant_of(const ModelSpec& model) {
    static constexpr Variant kLlama{.name = "llama", .architecture = "LlamaForCausalLM"};
    const Row* row = find_row(model.variant);
    return row ? row->names : kLlama;
}

std::vector<std::string> variant_names() {
    std::vector<std::string> names;
    for (const Row& row : rows()) names.emplace_back(row.names.name);
    return names;
}

std::vector<std::string> variant_choices() {
    std::vector<std::string> names = variant_names();
    names.insert(names.begin(), kAutoVariant);
    return names;
}

void set_variant(ModelSpec& m, std::string_view name) {
    m.variant = name;
    row_of(name).set(m);
}

void read_variant(std::string_view name, Keys& keys, ModelSpec& m, const std::string& path,
                  std::vector<std::string>& problems) {
    const Row& row = row_of(name);
    set_variant(m, name);
    if (row.attention) read_sizes(keys, m, row.head_dim, row.epsilon, row.layers(keys));
    m.tie_embeddings = row.tied == Tied::required ? keys.boolean("tie_word_embeddings")
                                                  : keys.boolean_or("tie_word_embeddings", row.tied == Tied::yes);
    keys.only(row.activation, std::vector<Json>(row.activations.begin(), row.activations.end()));
    for (const auto& [key, value] : row.only)
        if (std::string_view(key) != row.activation) keys.only(key, {value});
    for (const BooleanKey& b : row.booleans) m.*b.field = keys.boolean_or(b.key, b.absent);
    for (const NumberKey& n : row.numbers) read_number(keys, m, n);
    read_windows(keys, m, row);
    read_rope(keys, m, row.rope, path, problems);
    row.read(keys, m);
}

// --- writing ---------------------------------------------------------------------------------------------------------

namespace {

Json value_of(const ModelSpec& m, const NumberKey& n) {
    const double field = m.*n.field;
    switch (n.as) {
        case As::factor: return field == 0 ? 1.0 : field;
        case As::divisor: {
            const double value = field == 0 ? 1.0 : 1 / field;
            for (const double near : {value, std::nextafter(value, 0), std::nextafter(value, 2 * value)})
                if (1 / near == field) return near;  // reads back to the same field
            return value;
        }
        case As::cap:
        case As::given_cap: return field == 0 ? Json(nullptr) : Json(field);
        case As::inverse_root: break;
    }
    // The number that reads back to the same field: a whole one where there is one.
    const double value = field == 0 ? static_cast<double>(m.head_dim) : 1 / (field * field), whole = std::round(value);
    return 1 / std::sqrt(whole) == field || field == 0 ? whole : value;
}

Json rope_scaling_of(const ModelSpec& m) {
    const RopeScaling& s = m.rope_scaling;
    if (s.factor == 0) return nullptr;
    if (s.type == "longrope") {
        Json json = {{"rope_type", s.type},
                     {"factor", s.factor},
                     {"short_factor", number_list(s.short_factors)},
                     {"long_factor", number_list(s.long_factors)}};
        json["type"] = s.type;
        if (s.attention_factor > 0) json["attention_factor"] = s.attention_factor;
        return json;
    }
    return rope_scaling_config(s);
}

// The model without what the row's keys say: what is left must be what all models of the class have.
ModelSpec read_back(const ModelSpec& m, const Json& json) {
    std::vector<std::string> problems;
    Keys keys(json, "config.json", problems);
    ModelSpec read;
    read_variant(m.variant, keys, read, "config.json", problems);
    check<UsageError>(problems.empty(), "no ", m.variant,
                      " of transformers is like this model: ", joined(problems, "; "));
    // Not of the row.
    read.preset = m.preset;
    read.hf = m.hf;
    read.vocab = m.vocab;
    read.init_std = m.init_std;
    read.dropout = m.dropout;
    read.mtp_depth = m.mtp_depth;
    read.mtp_weight = m.mtp_weight;
    for (auto field : {&MixtureSpec::capacity_factor, &MixtureSpec::aux_coef, &MixtureSpec::z_coef})
        read.moe.*field = m.moe.*field;
    for (auto field : {&MixtureSpec::drop, &MixtureSpec::aux_loss}) read.moe.*field = m.moe.*field;
    return read;
}

}  // namespace

Json variant_config(const ModelSpec& m) {
    const Row& row = row_of(m.variant);
    Json json = {{"architectures", {std::string(row.names.architecture)}}, {"model_type", row.names.name}};
    json.update(sizes_config(m));
    json.update(Json{{row.activation, row.activations.front()},
                     {"max_position_embeddings", m.max_positions},
                     {row.epsilon, m.norm_eps},
                     {"tie_word_embeddings", m.tie_embeddings},
                     {"rope_theta", m.rope_theta},
                     {"rope_scaling", rope_scaling_of(m)},
                     {"attention_dropout", 0.0}});
    for (const BooleanKey& b : row.booleans) json[b.key] = m.*b.field;
    for (const NumberKey& n : row.numbers) json[n.key] = value_of(m, n);
    if (row.windows != Windows::none) json["sliding_window"] = m.window > 0 ? Json(m.window) : Json(nullptr);
    if (row.windows == Windows::others) {
        json["layer_types"] = Json::array();
        for (const LayerSpec& layer : all_layers(m))
            json["layer_types"].push_back(layer.attention()->window > 0 ? "sliding_attention" : "full_attention");
    }
    row.write(m, json);
    check<UsageError>(read_back(m, json) == m, "no ", m.variant,
                      " of transformers has all options of this model: a field of [model] differs from what the class "
                      "always has; use --format tutti, or another variant");
    return json;
}

}  // namespace tutti::spec
