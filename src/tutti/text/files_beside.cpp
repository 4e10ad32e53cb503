#include "tutti/text/files_beside.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>

#include "tutti/base/digits.h"
#include "tutti/base/error.h"
#include "tutti/base/read_file.h"

namespace tutti::text {

namespace {

constexpr const char* kConfig = "tokenizer_config.json";
constexpr const char* kMap = "special_tokens_map.json";
constexpr const char* kAdded = "added_tokens.json";
constexpr const char* kTokenizer = "tokenizer.json";

// Null when `file` has no such key.
const Json& value_of(const Json& file, const char* key) {
    static const Json kNull;
    return file.is_object() && file.contains(key) ? file[key] : kNull;
}

// "<s>" or {"content": "<s>", ...}
std::optional<std::string> token_text(const Json& token) {
    if (token.is_string()) return token.get<std::string>();
    if (const Json& content = value_of(token, "content"); content.is_string()) return content.get<std::string>();
    return std::nullopt;
}

// The flags of {"content": "<s>", "lstrip": true, ...}; absent ones are false.
AddedToken token_of(const Json& json, int32_t id, const std::string& content) {
    const auto flag = [&](const char* key) { return value_of(json, key) == true; };
    return {.id = id,
            .content = content,
            .single_word = flag("single_word"),
            .lstrip = flag("lstrip"),
            .rstrip = flag("rstrip"),
            .normalized = flag("normalized"),
            .special = flag("special")};
}

// "eos_token_id": 2 or [2, 3]
std::vector<int32_t> ids_of(const Json& file, const std::string& key) {
    std::vector<int32_t> ids;
    const auto take = [&](const Json& id) {
        if (id.is_integer(0, std::numeric_limits<int32_t>::max())) ids.push_back(id.get<int32_t>());
    };
    const Json& value = value_of(file, key.c_str());
    if (value.is_array())
        for (const Json& id : value) take(id);
    else
        take(value);
    return ids;
}

}  // namespace

FilesBeside::FilesBeside(const std::string& tokenizer)
    : tokenizer_(tokenizer),
      config_(read(kConfig)),
      map_(read(kMap)),
      generation_(read("generation_config.json")),
      added_(read(kAdded)),
      model_(Json::try_parse(read_file_if_there(path("config.json")).value_or("")).value_or(Json())),
      json_(tokenizer.ends_with(".model") ? read(kTokenizer) : Json()) {
    check<DataError>(flag("split_special_tokens") != true, path(kConfig), ": split_special_tokens = true: special ",
                     "tokens of a text become their ids here; set false");
}

std::string FilesBeside::path(const char* name) const {
    return (std::filesystem::path(tokenizer_).parent_path() / name).string();
}

Json FilesBeside::read(const char* name) const {
    const auto text = read_file_if_there(path(name));
    if (!text) return nullptr;
    try {
        Json file = Json::parse(*text);
        check<DataError>(file.is_object(), path(name), ": required: a JSON object, got ", file.shown());
        return file;
    } catch (const JsonError& error) {
        throw DataError(concat(path(name), ": is not JSON: ", error.what()));
    }
}

void FilesBeside::check_type(bool is_of_type, const char* file, const std::string& key, const Json& value,
                             const char* type) const {
    check<DataError>(is_of_type || value.is_null(), path(file), ": ", key, " = ", value.shown(), ": required: ", type);
}

std::vector<FilesBeside::Listed> FilesBeside::listed() const {
    std::vector<Listed> all;
    const auto add = [&](const char* file, const Json& token, const Json& id, const std::string& content) {
        const std::string place = concat(path(file), ": ", Json(content).dump());
        check<DataError>(id.is_integer(0, std::numeric_limits<int32_t>::max() - 1), place, ": its id is ", id.shown(),
                         ", required: a number from 0 to 2147483646");
        all.push_back({place, token_of(token, id.get<int32_t>(), content), true, token.is_object()});
    };
    if (const Json& tokens = value_of(json_, "added_tokens"); tokens.is_array())
        for (const Json& token : tokens)
            if (const auto content = token_text(token)) add(kTokenizer, token, value_of(token, "id"), *content);
    const Json& decoder = value_of(config_, "added_tokens_decoder");
    check_type(decoder.is_object(), kConfig, "added_tokens_decoder", decoder, "an object of tokens by id");
    if (decoder.is_object())
        for (const auto& [key, token] : decoder.items()) {
            const auto id = parse_number<int32_t>(key);
            if (const auto content = token_text(token)) add(kConfig, token, id ? Json(*id) : Json(key), *content);
        }
    if (added_.is_object())
        for (const auto& [content, id] : added_.items()) add(kAdded, Json(), id, content);
    std::ranges::stable_sort(all, {}, [](const Listed& l) { return l.token.id; });

    const auto name = [&](const char* file, const std::string& key, const Json& token) {
        const auto content = token_text(token);
        check_type(content.has_value(), file, key, token, "a text, or an object whose content is one");
        if (!content || content->empty()) return;
        AddedToken as = token_of(token, -1, *content);
        as.special = true;
        all.push_back(
            {concat(path(file), ": ", key, " = ", Json(*content).dump()), std::move(as), false, token.is_object()});
    };
    for (const auto& [file, json] : {std::pair<const char*, const Json&>{kConfig, config_}, {kMap, map_}}) {
        for (const char* key :
             {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"})
            name(file, key, value_of(json, key));
        for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
            const Json& tokens = value_of(json, key);
            if (tokens.is_array())
                for (const Json& token : tokens) name(file, key, token);
            if (tokens.is_object())
                for (const auto& [role, token] : tokens.items()) name(file, concat(key, ".", role), token);
        }
    }
    return all;
}

void FilesBeside::add_tokens(std::vector<AddedToken>& added,
                             const std::function<std::optional<int32_t>(const std::string&)>& id_of,
                             int32_t next) const {
    for (const Listed& l : listed()) {
        const auto known = std::ranges::find(added, l.token.content, &AddedToken::content);
        const auto vocab = known != added.end() ? std::optional(known->id) : id_of(l.token.content);
        check<DataError>(vocab || l.has_id, l.place, ": is no token of ", tokenizer_,
                         ", and no file gives it an id; add it to the added_tokens there, or take it out here");
        const int32_t id = vocab.value_or(next);
        check<DataError>(!l.has_id || l.token.id == id, l.place, ": has id ", l.token.id, " here, ", id,
                         vocab ? " in " : " counted on behind ", tokenizer_);
        if (!vocab) ++next;
        if (known == added.end()) {
            added.push_back(l.token);
            added.back().id = id;
        } else if (l.has_flags && l.has_id) {
            *known = l.token;
        } else {
            known->special = known->special || l.token.special;
        }
    }
}

SpecialIds FilesBeside::special_ids(const std::function<std::optional<int32_t>(const std::string&)>& id_of) const {
    const auto find = [&](const std::string& name) -> std::optional<int32_t> {
        for (const Json* file : {&config_, &map_})
            if (const auto text = token_text(value_of(*file, name.c_str())); text && !text->empty())
                return id_of(*text);
        const auto ids = ids_of(generation_, name + "_id");
        return ids.empty() ? std::nullopt : std::optional(ids.front());
    };
    SpecialIds special{find("bos_token"), find("eos_token"), find("pad_token"), ids_of(generation_, "eos_token_id")};
    if (special.stop.empty() && special.eos) special.stop = {*special.eos};
    return special;
}

std::optional<bool> FilesBeside::flag(const char* name) const {
    const Json& value = value_of(config_, name);
    check_type(value.is_boolean(), kConfig, name, value, "true or false");
    return value.is_boolean() ? std::optional(value.get<bool>()) : std::nullopt;
}

namespace {

// What transformers 5.24 registers for a model (models/auto/tokenization_auto.py), of those that Tutti reads: a class
// that takes the file as it is (TokenizersBackend), or one that makes its own.
bool takes_the_file(const std::string& model) {
    return std::ranges::count(std::array{"mistral", "mistral3", "ministral3", "mixtral", "phi3", "olmo2", "olmo3",
                                         "granite", "granitemoehybrid", "glm", "glm4"},
                              model) > 0;
}
const char* class_of(const std::string& model) {
    if (model == "gpt2") return "GPT2Tokenizer";
    if (model == "mamba2") return "GPTNeoXTokenizer";
    if (model.starts_with("qwen3_5")) return "Qwen3_5Tokenizer";
    return model.starts_with("qwen") ? "Qwen2Tokenizer" : "";
}

std::string text_or_nothing(const Json& value) { return value.is_string() ? value.get<std::string>() : ""; }

}  // namespace

std::string FilesBeside::tokenizer_class() const {
    const Json& named = value_of(config_, "tokenizer_class");
    check_type(named.is_string(), kConfig, "tokenizer_class", named, "a text");
    return text_or_nothing(named);
}

std::string FilesBeside::class_in_transformers() const {
    const std::string model = text_or_nothing(value_of(model_, "model_type"));
    if (takes_the_file(model)) return "";
    for (const Json* config : {&config_, &model_})
        if (const std::string named = text_or_nothing(value_of(*config, "tokenizer_class")); !named.empty())
            return named;
    return class_of(model);
}

}  // namespace tutti::text
