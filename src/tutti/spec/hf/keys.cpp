#include "tutti/spec/hf/keys.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tutti/spec/layers.h"

namespace tutti::spec {

namespace {

// The word Infinity outside of texts as an object.
std::string without_infinity(std::string_view text) {
    constexpr std::string_view kWord = "Infinity", kObject = R"({"__float__": "Infinity"})";
    std::string out;
    bool inside = false;
    for (size_t i = 0; i < text.size(); ++i) {
        if (!inside && text.substr(i).starts_with(kWord)) {
            out += kObject;
            i += kWord.size() - 1;
            continue;
        }
        if (text[i] == '"') inside = !inside;
        if (inside && text[i] == '\\' && i + 1 < text.size()) out += text[i++];
        out += text[i];
    }
    return out;
}

}  // namespace

Json parse_hf_json(std::string_view text, const std::string& path) {
    constexpr size_t kMaxBytes = size_t{16} << 20;
    constexpr int kMaxDepth = 16;
    check<DataError>(text.size() <= kMaxBytes, path, ": ", text.size(), " bytes, at most ", kMaxBytes, " are allowed");
    try {
        Json json = Json::parse(without_infinity(text), kMaxDepth);
        check<DataError>(json.is_object(), path, ": required a JSON object, got ", json.type_name());
        return json;
    } catch (const JsonError& error) {
        throw DataError(concat(path, ": ", error.what()));
    }
}

namespace {

// Keys that say nothing about the function from tokens to logits.
const std::set<std::string_view>& harmless_keys() {
    static const std::set<std::string_view> kKeys = {
        // origin and type of the weights
        "architectures", "transformers_version", "torch_dtype", "dtype", "name_or_path", "tokenizer_class",
        // tokens
        "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id", "decoder_start_token_id",
        // the training recipe: [model] dropout is the run's own
        "attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop", "hidden_dropout", "residual_dropout",
        "summary_first_dropout",
        // how transformers runs it; pretraining_tp and reorder_and_upcast_attn change the order of sums only
        "use_cache", "return_dict", "output_attentions", "output_hidden_states", "pretraining_tp",
        "reorder_and_upcast_attn", "gradient_checkpointing", "chunk_size_feed_forward", "cache_implementation",
        "auto_map",
        // heads of other tasks
        "summary_activation", "summary_proj_to_labels", "summary_type", "summary_use_proj", "id2label", "label2id",
        "num_labels", "problem_type", "finetuning_task", "task_specific_params",
        // generation, as old files have it
        "max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty",
        "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
        "encoder_no_repeat_ngram_size", "num_return_sequences", "prefix", "return_dict_in_generate", "output_scores",
        "remove_invalid_values", "bad_words_ids", "forced_bos_token_id", "forced_eos_token_id", "suppress_tokens",
        "begin_suppress_tokens"};
    return kKeys;
}

bool asks_for_nothing(const Json& value) {
    return value.is_null() || value == false || ((value.is_array() || value.is_object()) && value.empty());
}

}  // namespace

const Json* Keys::take(const std::string& key) {
    taken_.insert(key);
    const Json* found = object_.find(key);
    return found == nullptr || found->is_null() ? nullptr : found;
}

int64_t Keys::integer(const std::string& key, int64_t low) {
    const Json* value = take(key);
    if (value == nullptr) return problem(key, "required"), low;
    return as_integer(key, *value, low);
}

int64_t Keys::integer_or(const std::string& key, int64_t absent, int64_t low) {
    const Json* value = take(key);
    return value ? as_integer(key, *value, low) : absent;
}

double Keys::number(const std::string& key) {
    if (take(key) == nullptr) return problem(key, "required"), 1;
    return number_or(key, 1);
}

double Keys::number_or(const std::string& key, double absent) {
    const Json* value = take(key);
    if (value == nullptr) return absent;
    if (value->is_number() && std::isfinite(value->get<double>()) && value->get<double>() >= 0)
        return value->get<double>();
    return problem(key, "must be a number of at least 0"), absent;
}

bool Keys::boolean(const std::string& key) {
    if (take(key) == nullptr) return problem(key, "required"), false;
    return boolean_or(key, false);
}

bool Keys::boolean_or(const std::string& key, bool absent) {
    const Json* value = take(key);
    // null is false to a class that does not refuse it.
    if (value == nullptr && absent && has(key)) return problem(key, "must be true or false"), absent;
    if (value == nullptr) return absent;
    if (value->is_boolean()) return value->get<bool>();
    return problem(key, "must be true or false"), absent;
}

std::optional<std::vector<bool>> Keys::named(const std::string& key, int64_t layers, const char* name,
                                             const char* other) {
    const std::string of = concat("times ", name, " or ", other);
    const Json* names = list(key, layers, of.c_str(), [&](const Json& x) { return x == name || x == other; });
    if (names == nullptr) return std::nullopt;
    std::vector<bool> first;
    for (const Json& one : *names) first.push_back(one == name);
    return first;
}

void Keys::only(const std::string& key, const std::vector<Json>& allowed) {
    const Json* value = take(key);
    if (value == nullptr || std::find(allowed.begin(), allowed.end(), *value) != allowed.end()) return;
    problem(key, "this Tutti has ", joined(allowed, " or ", [](const Json& one) { return one.dump(); }), " only");
}

void Keys::refuse_the_rest(bool top) {
    for (const auto& [key, value] : object_.items()) {
        const bool known = taken_.contains(key) || (top && harmless_keys().contains(key));
        if (known || asks_for_nothing(value) || key.starts_with("_")) continue;
        problem(key,
                "not known to this Tutti and might change what the model computes; "
                "remove it from the file if it does not");
    }
}

int64_t Keys::as_integer(const std::string& key, const Json& value, int64_t low) {
    constexpr int64_t kHigh = std::numeric_limits<int32_t>::max();
    if (value.is_integer(low, kHigh)) return value.get<int64_t>();
    problem(key, "must be a whole number from ", low, " to ", kHigh);
    return low;
}

void read_router_loss(Keys& keys, MixtureSpec& e, double absent) {
    const double coefficient = keys.number_or("router_aux_loss_coef", absent);
    if (!keys.boolean_or("output_router_logits", false) || coefficient == 0) return;
    e.aux_loss = "all_layers";
    e.aux_coef = coefficient;
}

// --- rotary positions ------------------------------------------------------------------------------------------------

namespace {

void read_yarn(Keys& keys, RopeScaling& s, int64_t max_positions, const RopeKeys& known) {
    s.original_max_positions = keys.integer_or("original_max_position_embeddings", max_positions);
    s.beta_fast = keys.number_or("beta_fast", 32);
    s.beta_slow = keys.number_or("beta_slow", 1);
    s.attention_factor = keys.number_or("attention_factor", 0);
    if (s.attention_factor == 0 && keys.take("attention_factor") != nullptr)
        keys.problem("attention_factor",
                     "attention that is multiplied by 0 sees nothing; leave it out for the usual one");
    const double one = keys.number_or("mscale", 0), all = keys.number_or("mscale_all_dim", 0);
    if (known.mscales) {
        s.mscale = one;
        s.mscale_all_dim = all;
    } else if (s.attention_factor == 0 && one > 0 && all > 0) {
        s.attention_factor = yarn_mscale(one, s.factor) / yarn_mscale(all, s.factor);
        if (s.attention_factor == yarn_mscale(1, s.factor)) s.attention_factor = 0;
    }
    if (known.by_layer_kind)
        keys.only("truncate", {true});  // read at the top of such objects, where it is not
    else
        s.truncate = keys.boolean_or("truncate", true);
    keys.take("finetuned");
}

std::string number_list_of(Keys& keys, const char* key, int64_t size) {
    const Json* list = keys.list(key, size, "numbers above 0, one for each frequency",
                                 [](const Json& x) { return x.is_number() && x.get<double>() > 0; });
    if (list == nullptr && !keys.has(key)) keys.problem(key, "required");
    return list ? list_text(list->get<std::vector<double>>()) : "";
}

// rope_scaling of transformers 4, rope_parameters of 5.
void read_rope_scaling(Keys& keys, ModelSpec& m, const RopeKeys& known, int64_t original) {
    const std::string type = [&] {
        const Json* value = keys.take("rope_type");
        const Json* old = keys.take("type");
        if (value == nullptr) value = old;
        return value && value->is_string() ? value->get<std::string>() : std::string("default");
    }();
    RopeScaling& s = m.rope_scaling;
    if (type == "default") return;
    if (known.longrope && (type == "longrope" || type == "su" || type == "yarn")) {
        s.type = "longrope";
        keys.take("original_max_position_embeddings");  // that at the top counts, and its absence too
        s.original_max_positions = std::max<int64_t>(original, 1);
        if (original == 0) keys.problem("original_max_position_embeddings", "required, at the top of the file");
        s.factor = keys.number_or("factor",
                                  static_cast<double>(m.max_positions) / static_cast<double>(s.original_max_positions));
        s.attention_factor = keys.number_or("attention_factor", 0);
        const int64_t frequencies = (m.rope_dims > 0 ? m.rope_dims : m.head_dim) / 2;
        s.short_factors = number_list_of(keys, "short_factor", frequencies);
        s.long_factors = number_list_of(keys, "long_factor", frequencies);
        return;
    }
    if (type != "llama3" && type != "linear" && type != "yarn")
        return keys.problem("rope_type", "this Tutti has default, linear, llama3 and yarn only",
                            known.longrope ? ", here longrope" : "");
    s.type = type;
    s.factor = keys.number("factor");
    if (type == "yarn") read_yarn(keys, s, m.max_positions, known);
    if (type != "llama3") return;
    s.low_freq_factor = keys.number("low_freq_factor");
    s.high_freq_factor = keys.number("high_freq_factor");
    s.original_max_positions = keys.integer("original_max_position_embeddings");
}

}  // namespace

void read_rope(Keys& keys, ModelSpec& m, const RopeKeys& known, const std::string& path,
               std::vector<std::string>& problems) {
    m.rope_theta = keys.number_or("rope_theta", known.theta);
    double partial = known.partial > 0 ? known.partial : 1;
    const auto read_partial = [&](Keys& at) {
        if (known.partial == 0) return at.only("partial_rotary_factor", {1.0});
        partial = at.number_or("partial_rotary_factor", partial);
    };
    const auto set_dims = [&] {
        const auto dims = static_cast<int64_t>(static_cast<double>(m.head_dim) * partial);
        m.rope_dims = dims == m.head_dim ? 0 : dims;
        if (partial != 1 && (dims < 2 || dims > m.head_dim))
            keys.problem("partial_rotary_factor", "rotates ", dims, " of the ", m.head_dim, " channels of a head");
    };
    const int64_t original = known.longrope ? keys.integer_or("original_max_position_embeddings", 0) : 0;
    read_partial(keys);
    set_dims();
    const auto read_object = [&](const Json& object, const std::string& name) {
        Keys inside(object, concat(path, ": ", name), problems);
        m.rope_theta = inside.number_or("rope_theta", m.rope_theta);
        read_partial(inside);
        set_dims();
        read_rope_scaling(inside, m, known, original);
        if (known.mrope)
            for (const char* key : {"mrope_section", "mrope_interleaved"}) inside.take(key);
        if (known.growth) {
            m.query_growth = inside.number("llama_4_scaling_beta");
            inside.only("max_position_embeddings", {m.max_positions});
        }
        inside.refuse_the_rest(false);
    };
    bool any = false;
    for (const char* name : {"rope_scaling", "rope_parameters"}) {
        const Json* object = keys.take(name);
        if (object == nullptr) continue;
        any = true;
        if (!object->is_object()) {
            keys.problem(name, "must be an object");
            continue;
        }
        const Json *full = object->find("full_attention"), *sliding = object->find("sliding_attention");
        if (!known.by_layer_kind || full == nullptr || sliding == nullptr || !full->is_object() ||
            !sliding->is_object()) {
            read_object(*object, name);
            continue;
        }
        read_object(*full, concat(name, ": full_attention"));
        Keys of_sliding(*sliding, concat(path, ": ", name, ": sliding_attention"), problems);
        m.window_rope_theta = of_sliding.number("rope_theta");
        of_sliding.only("rope_type", {"default"});
        of_sliding.refuse_the_rest(false);
        Keys both(*object, concat(path, ": ", name), problems);
        for (const char* kind : {"full_attention", "sliding_attention"}) both.take(kind);
        both.refuse_the_rest(false);
    }
    if (known.required && !any) keys.problem("rope_parameters", "required");
}

void read_sizes(Keys& keys, ModelSpec& m, int64_t head_dim, const char* epsilon, int64_t layers) {
    m.width = keys.integer("hidden_size");
    m.layers = layers > 0 ? keys.integer_or("num_hidden_layers", layers) : keys.integer("num_hidden_layers");
    m.heads = keys.integer("num_attention_heads");
    m.kv_heads = keys.integer_or("num_key_value_heads", m.heads);
    // A class whose layers all have experts may lack the size of the others.
    m.ffn = keys.integer(keys.has("intermediate_size") || !keys.has("moe_intermediate_size") ? "intermediate_size"
                                                                                             : "moe_intermediate_size");
    m.max_positions = keys.integer("max_position_embeddings");
    m.norm_eps = keys.number(epsilon);
    if (keys.take("head_dim") == nullptr && head_dim == 0 && m.width % m.heads != 0)
        keys.problem("num_attention_heads", "must divide hidden_size = ", m.width, ", where there is no head_dim");
    m.head_dim = keys.integer_or("head_dim", head_dim > 0 ? head_dim : m.width / m.heads);
}

Json sizes_config(const ModelSpec& m) {
    return {{"vocab_size", m.vocab},         {"hidden_size", m.width},         {"intermediate_size", m.ffn},
            {"num_hidden_layers", m.layers}, {"num_attention_heads", m.heads}, {"num_key_value_heads", m.kv_heads},
            {"head_dim", m.head_dim}};
}

}  // namespace tutti::spec
