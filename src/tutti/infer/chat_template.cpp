#include "tutti/infer/chat_template.h"

#include <filesystem>
#include <vector>

#include "tutti/base/read_file.h"

namespace tutti::infer {

namespace {

namespace fs = std::filesystem;

struct Source {
    std::string path, text;
};

// Null: the file is not there.
Json read_json(const fs::path& path) {
    const auto text = read_file_if_there(path.string());
    try {
        return text ? Json::parse(*text) : Json();
    } catch (const JsonError& error) {
        throw DataError(concat(path.string(), " is not JSON: ", error.what()));
    }
}

// A text of a file, for errors by its path and key.
std::string text_of(const Json* value, const fs::path& path, const std::string& key) {
    check<DataError>(value != nullptr && value->is_string(), path.string(), ": ", key, " = ",
                     value != nullptr ? value->shown() : "nothing", ": required: a text");
    return value->text();
}

// The member chat_template of a file: a text, or a list of {"name", "template"}.
std::string template_in(const fs::path& path) {
    const Json file = read_json(path);
    const Json* found = file.find("chat_template");
    if (!found || found->is_null()) return "";
    if (found->is_string()) return found->text();
    check<DataError>(found->is_array(), path.string(), ": chat_template = ", found->shown(),
                     ": required: a text, or a list of templates with name and template");
    std::vector<std::string> names;
    for (const Json& one : found->elements()) {
        names.push_back(text_of(one.find("name"), path, "name of a chat_template"));
        if (names.back() == "default")
            return text_of(one.find("template"), path, "template of the chat_template default");
    }
    throw DataError(concat(path.string(), ": none of its chat templates is named default, but ", joined(names),
                           "; --template FILE names one of your own"));
}

// Where the files of a model are that are not its weights.
std::vector<std::string> folders_of(const StoredModel& stored) {
    std::vector<std::string> folders;
    if (!stored.side_files.empty()) folders.push_back(stored.side_files);
    const fs::path tokenizer = stored.tokenizer;
    if (!tokenizer.empty() && stored.tokenizer != "bytes") {
        std::string folder = fs::is_directory(tokenizer) ? tokenizer.string() : tokenizer.parent_path().string();
        if (folder.empty()) folder = ".";
        if (folders.empty() || folders[0] != folder) folders.push_back(folder);
    }
    return folders;
}

Source find_template(const StoredModel& stored, const std::string& file) {
    if (!file.empty()) return {file, read_file(file)};
    const std::vector<std::string> folders = folders_of(stored);
    for (const fs::path folder : folders) {
        if (auto text = read_file_if_there((folder / "chat_template.jinja").string()))
            return {(folder / "chat_template.jinja").string(), *std::move(text)};
        for (const char* name : {"chat_template.json", "tokenizer_config.json"})
            if (std::string text = template_in(folder / name); !text.empty())
                return {(folder / name).string(), std::move(text)};
    }
    throw DataError(
        concat(stored.path, " has no chat template: looked for chat_template.jinja, and for chat_template in ",
               "chat_template.json and tokenizer_config.json, in ",
               folders.empty() ? "no folder, since the model has no files of a tokenizer" : joined(folders, " and "),
               "; `tutti generate` continues texts without one, and --template FILE gives one"));
}

// The texts of the special tokens that the files name: a text, or {"content"}.
Json tokens_of(const StoredModel& stored) {
    Json tokens = Json::object();
    for (const fs::path folder : folders_of(stored))
        for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
            const Json file = read_json(folder / name);
            for (const char* token :
                 {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
                const Json* found = file.find(token);
                if (!found || found->is_null() || tokens.contains(token)) continue;
                tokens[token] = text_of(found->is_object() ? found->find("content") : found, folder / name, token);
            }
        }
    return tokens;
}

}  // namespace

ChatTemplate::ChatTemplate(const StoredModel& stored, const std::string& file)
    : tokens_(tokens_of(stored)), template_([&] {
          const Source source = find_template(stored, file);
          path_ = source.path;
          return jinja::Template(path_, source.text);
      }()) {}

jinja::Rendered ChatTemplate::render(const Json& messages, const Json& more) const {
    Json input = tokens_;
    input.update({{"messages", messages}, {"tools", nullptr}, {"documents", nullptr}, {"add_generation_prompt", true}});
    input.update(more);
    return template_.render(input, {.now = jinja::local_time()});
}

}  // namespace tutti::infer
