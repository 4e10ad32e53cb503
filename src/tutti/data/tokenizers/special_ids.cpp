#include "tutti/data/tokenizers/special_ids.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/base/read_file.h"
#include "tutti/data/tokenizers/tokenizer_json.h"

namespace tutti::data {

namespace {

using Json = nlohmann::json;

std::string content_of(const std::string& path) {
    auto text = read_file(path);
    check<DataError>(text.has_value(), path, ": cannot be read");
    return *std::move(text);
}

// Null when there is no such file.
Json read_beside(const std::string& path, const char* name) {
    const auto file = std::filesystem::path(path).parent_path() / name;
    if (!std::filesystem::exists(file)) return nullptr;
    try {
        return Json::parse(content_of(file.string()));
    } catch (const Json::exception& error) {
        throw DataError(concat(file.string(), ": is not JSON: ", error.what()));
    }
}

// "bos_token": "<s>" or {"content": "<s>", ...}
std::optional<std::string> token_text(const Json& file, const char* key) {
    if (!file.is_object() || !file.contains(key)) return std::nullopt;
    const Json& token = file[key];
    if (token.is_string()) return token.get<std::string>();
    if (token.is_object() && token.contains("content") && token["content"].is_string())
        return token["content"].get<std::string>();
    return std::nullopt;
}

// "eos_token_id": 2 or [2, 3]
std::vector<int32_t> ids_of(const Json& file, const std::string& key) {
    std::vector<int32_t> ids;
    if (!file.is_object() || !file.contains(key)) return ids;
    const auto take = [&](const Json& id) {
        if (id.is_number_unsigned() && id.get<uint64_t>() < (uint64_t{1} << 31)) ids.push_back(id.get<int32_t>());
    };
    if (file[key].is_array())
        for (const Json& id : file[key]) take(id);
    else
        take(file[key]);
    return ids;
}

}  // namespace

SpecialIds special_ids_beside(const std::string& tokenizer,
                              const std::function<std::optional<int32_t>(const std::string&)>& id_of) {
    const Json config = read_beside(tokenizer, "tokenizer_config.json");
    const Json map = read_beside(tokenizer, "special_tokens_map.json");
    const Json generation = read_beside(tokenizer, "generation_config.json");
    const auto find = [&](const std::string& name) -> std::optional<int32_t> {
        for (const Json* file : {&config, &map})
            if (const auto text = token_text(*file, name.c_str()))
                if (const auto id = id_of(*text)) return id;
        const auto ids = ids_of(generation, name + "_id");
        return ids.empty() ? std::nullopt : std::optional(ids.front());
    };
    SpecialIds special{find("bos_token"), find("eos_token"), find("pad_token"), ids_of(generation, "eos_token_id")};
    if (special.stop.empty() && special.eos) special.stop = {*special.eos};
    return special;
}

bool asks_for_bos(const std::string& tokenizer) {
    const Json config = read_beside(tokenizer, "tokenizer_config.json");
    return config.is_object() && config.contains("add_bos_token") && config["add_bos_token"] == true;
}

std::unique_ptr<const Tokenizer> open_tokenizer_json(const std::string& path) {
    ByteLevelModel model = parse_tokenizer_json(content_of(path), path);
    model.special = special_ids_beside(path, [&](const std::string& text) -> std::optional<int32_t> {
        for (const AddedToken& token : model.added)
            if (token.content == text) return token.id;
        const auto found = std::find(model.tokens.begin(), model.tokens.end(), bytes_of_token(text));
        if (found == model.tokens.end() || !*found) return std::nullopt;
        return static_cast<int32_t>(found - model.tokens.begin());
    });
    return std::make_unique<ByteLevelTokenizer>(std::move(model), path);
}

}  // namespace tutti::data
