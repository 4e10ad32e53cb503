#include "tutti/spec/hf/generation.h"

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/spec/hf/config.h"
#include "tutti/spec/hf/keys.h"

namespace tutti::spec {

std::vector<int32_t> eos_tokens(std::string_view text, const std::string& path) {
    if (const auto of_text = text_config(text, path)) return eos_tokens(*of_text, path);
    const Json json = parse_hf_json(text, path);
    const Json value = json.contains("eos_token_id") ? json["eos_token_id"] : Json();
    std::vector<int32_t> ids;
    const auto add = [&](const Json& id) {
        check<DataError>(id.is_integer(0, 0x7fffffff), path, ": eos_token_id = ", value.dump(),
                         ": must be a token id or a list of them");
        ids.push_back(id.get<int32_t>());
    };
    if (value.is_array())
        for (const Json& id : value) add(id);
    else if (!value.is_null())
        add(value);
    return ids;
}

std::string hf_json_with_tokens(std::string_view text, const std::string& path, const HfTokens& tokens) {
    Json json = parse_hf_json(text, path);
    bool changed = false;
    const auto set = [&](const char* key, const Json& value) {
        json[key] = value;
        changed = true;
    };
    std::vector<int32_t> eos = eos_tokens(text, path);
    const size_t own = eos.size();
    for (const int32_t id : tokens.eos)
        if (std::find(eos.begin(), eos.end(), id) == eos.end()) eos.push_back(id);
    if (eos.size() > own) set("eos_token_id", eos.size() == 1 ? Json(eos[0]) : Json(eos));
    for (const auto& [key, id] : {std::pair{"bos_token_id", tokens.bos}, {"pad_token_id", tokens.pad}}) {
        const Json* there = json.find(key);
        if (id && (there == nullptr || there->is_null())) set(key, *id);
    }
    return changed ? json.dump(2) + "\n" : std::string(text);
}

std::string unsupported_generation_options(std::string_view text, const std::string& path) {
    const Json json = parse_hf_json(text, path);
    // GenerationConfig of transformers 5.24, each with the number that leaves it without effect, as null, false and []
    // do.
    constexpr std::pair<const char*, double> kOptions[] = {{"repetition_penalty", 1},
                                                           {"encoder_repetition_penalty", 1},
                                                           {"typical_p", 1},
                                                           {"guidance_scale", 1},
                                                           {"num_beams", 1},
                                                           {"no_repeat_ngram_size", 0},
                                                           {"min_length", 0},
                                                           {"min_new_tokens", 0},
                                                           {"min_p", 0},
                                                           {"epsilon_cutoff", 0},
                                                           {"eta_cutoff", 0},
                                                           {"bad_words_ids", 0},
                                                           {"suppress_tokens", 0},
                                                           {"begin_suppress_tokens", 0},
                                                           {"forced_bos_token_id", -1},
                                                           {"forced_eos_token_id", -1},
                                                           {"sequence_bias", 0},
                                                           {"stop_strings", 0},
                                                           {"penalty_alpha", 0},
                                                           {"dola_layers", 0},
                                                           {"watermarking_config", 0},
                                                           {"exponential_decay_length_penalty", 0}};
    std::string options;
    for (const auto& [key, neutral] : kOptions) {
        const Json* value = json.find(key);
        if (value == nullptr || value->is_null() || *value == false || *value == Json::array()) continue;
        if (value->is_number() && value->get<double>() == neutral) continue;
        options += concat(options.empty() ? "" : ", ", key, " = ", value->shown());
    }
    return options;
}

}  // namespace tutti::spec
