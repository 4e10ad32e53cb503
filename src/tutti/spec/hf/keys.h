// spec/hf/keys.h: one object of a config.json of Hugging Face, whose keys are taken out one by one: what is left when
// all readers are done must be harmless (config.h).
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/spec/model_spec.h"

namespace tutti::spec {

// DataError for text that is not JSON or not an object, and for more than 16 levels or 16 MiB. Infinity, which Python
// writes and JSON lacks, is {"__float__": "Infinity"}, as transformers 5 writes it.
Json parse_hf_json(std::string_view text, const std::string& path);

class Keys {
  public:
    // Problems are appended to `problems`, with `path` before each.
    Keys(const Json& object, std::string path, std::vector<std::string>& problems)
        : object_(object), path_(std::move(path)), problems_(problems) {}

    template <class... Parts>
    void problem(const std::string& key, const Parts&... parts) {
        const std::string value = object_.contains(key) ? " = " + object_.at(key).dump() : "";
        problems_.push_back(concat(path_, ": ", key, value, ": ", parts...));
    }
    // Null when the key is absent or null.
    const Json* take(const std::string& key);
    bool has(const std::string& key) const { return object_.contains(key); }
    int64_t integer(const std::string& key, int64_t low = 1);  // required
    int64_t integer_or(const std::string& key, int64_t absent, int64_t low = 1);
    double number(const std::string& key);  // required; at least 0, like the next
    double number_or(const std::string& key, double absent);
    bool boolean(const std::string& key);  // required
    bool boolean_or(const std::string& key, bool absent);
    // A list of `size` elements, each of which `element` accepts; null when the key is absent or something else, which
    // is a problem.
    template <class Accepts>
    const Json* list(const std::string& key, int64_t size, const char* of, const Accepts& accepts) {
        const Json* value = take(key);
        if (value == nullptr) return nullptr;
        bool fits = value->is_array() && static_cast<int64_t>(value->size()) == size;
        if (fits)
            for (const Json& element : *value) fits = fits && accepts(element);
        if (!fits) problem(key, "must be a list of ", size, " ", of);
        return fits ? value : nullptr;
    }
    // Of a list with one of two names for each layer: which layers have the first. Nothing as in list().
    std::optional<std::vector<bool>> named(const std::string& key, int64_t layers, const char* name, const char* other);
    // The key may be absent; if not, its value is one of these.
    void only(const std::string& key, const std::vector<Json>& allowed);
    // Problems for the keys that were not taken; at the top level, keys that say nothing about the function are known.
    void refuse_the_rest(bool top);

  private:
    int64_t as_integer(const std::string& key, const Json& value, int64_t low);

    const Json& object_;
    std::string path_;
    std::vector<std::string>& problems_;
    std::set<std::string> taken_;
};

// Reads the sizes and the epsilon that Llama and its relatives name alike, from hidden_size to head_dim. `head_dim`:
// what files without the key mean; 0: hidden_size / num_attention_heads. `epsilon`: the key of that of norms. `layers`:
// those of files without num_hidden_layers; 0: required.
void read_sizes(Keys& keys, ModelSpec& model, int64_t head_dim, const char* epsilon = "rms_norm_eps",
                int64_t layers = 0);
// The same sizes from vocab_size to head_dim, for writing.
Json sizes_config(const ModelSpec& model);

// Reads the balancing loss that transformers adds where a config says so; `absent`: the class's factor of files without
// router_aux_loss_coef.
void read_router_loss(Keys& keys, MixtureSpec& experts, double absent);

// What a class of transformers understands of rotary positions.
struct RopeKeys {
    double theta = 10000;        // what files without the key mean
    double partial = 1;          // partial_rotary_factor of files without the key; 0: the class has no such key
    bool longrope = false;       // "su" and "yarn" mean it, too
    bool by_layer_kind = false;  // sliding and full layers have an object each (transformers 5)
    bool growth = false;         // llama_4_scaling_beta
    bool mrope = false;          // mrope_section and mrope_interleaved, which change nothing for a text's positions
    bool mscales = false;        // yarn's mscale and mscale_all_dim also scale the scores
    bool required = false;       // the class makes a scaling of its own of a file without the object
};
// Reads rope_theta and rope_scaling of transformers 4 or rope_parameters of 5 into rope_* and query_growth of the
// model, whose head_dim and max_positions are set; with by_layer_kind also into window_rope_theta.
void read_rope(Keys& keys, ModelSpec& model, const RopeKeys& known, const std::string& path,
               std::vector<std::string>& problems);

}  // namespace tutti::spec
