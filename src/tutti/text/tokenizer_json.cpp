#include "tutti/text/tokenizer_json.h"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <unordered_map>
#include <unordered_set>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/read_file.h"
#include "tutti/base/to_size.h"
#include "tutti/text/files_beside.h"

namespace tutti::text {

namespace {

// A place in the file and its name in messages: `model.merges[3]`.
struct Node {
    const Json& value;
    const std::string& path;
    std::string name;
    int64_t index = -1;           // of an element of the list `name`
    std::string_view entry = {};  // of an element of the vocabulary

    // The name is built on demand only: a large file has 300,000 elements.
    std::string full_name() const {
        if (index >= 0) return concat(name, "[", index, "]");
        return entry.data() == nullptr ? name : concat(name, "[", Json(entry).dump(), "]");
    }
    [[noreturn]] void fail(const std::string& required) const {
        throw DataError(concat(path, ": ", full_name(), " = ", value.shown(), ": ", required));
    }
    void require(bool ok, const char* required) const {
        if (!ok) fail(concat("required: ", required));
    }
    bool has(const char* key) const { return value.contains(key) && !value[key].is_null(); }
    Node at(const char* key) const {
        const std::string full = name.empty() ? key : full_name() + "." + key;
        check<DataError>(value.contains(key), path, ": ", full, " is missing");
        return {value[key], path, full};
    }
    Node at(size_t element) const {
        return {value[element], path, index < 0 ? name : full_name(), static_cast<int64_t>(element)};
    }
    std::string text() const {
        require(value.is_string(), "a text");
        return value.get<std::string>();
    }
    bool flag() const {
        require(value.is_boolean(), "true or false");
        return value.get<bool>();
    }
    bool flag_or(const char* key, bool otherwise) const { return has(key) ? at(key).flag() : otherwise; }
    int32_t id() const {
        require(value.is_integer(0, std::numeric_limits<int32_t>::max() - 1), "an id from 0 to 2147483646");
        return value.get<int32_t>();
    }
    std::string type() const {
        require(value.is_object(), "an object");
        return at("type").text();
    }
    // An unknown field might change ids.
    void allow(std::initializer_list<std::string_view> known) const {
        require(value.is_object(), "an object");
        for (const auto& [key, ignored] : value.items())
            if (std::find(known.begin(), known.end(), key) == known.end())
                Node{value[key], path, name.empty() ? key : full_name() + "." + key}.fail(
                    "this version does not know this field");
    }
};

void read_normalizer(const Node& node, ByteLevelModel& model) {
    const std::string type = node.type();
    if (type == "NFC") {
        node.allow({"type"});
        model.nfc = true;
        return;
    }
    const bool sequence =
        type == "Sequence" && node.at("normalizers").value.is_array() && node.at("normalizers").value.size() <= 1;
    if (!sequence) node.fail("supported normalizers: null and NFC");
    node.allow({"type", "normalizers"});
    for (size_t i = 0; i < node.at("normalizers").value.size(); ++i)
        read_normalizer(node.at("normalizers").at(i), model);
}

void read_byte_level(const Node& node, ByteLevelModel& model, bool use_regex) {
    node.allow({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    if (node.type() != "ByteLevel" || node.flag_or("use_regex", true) != use_regex)
        node.fail(concat("supported here: ByteLevel with use_regex = ", use_regex ? "true" : "false"));
    model.add_prefix_space = node.flag_or("add_prefix_space", true);
}

void read_pre_tokenizer(const Node& node, ByteLevelModel& model) {
    constexpr const char* kSupported =
        "supported pre-tokenizers: ByteLevel (GPT-2), or the Sequence of Split (by the pattern of GPT-2, Llama 3, Qwen "
        "2 "
        "or Qwen 3.5, behavior Isolated, not inverted) and ByteLevel with use_regex = false";
    if (!node.value.is_object()) node.fail(kSupported);
    if (node.type() == "ByteLevel") {
        model.split = SplitKind::gpt2;
        return read_byte_level(node, model, true);
    }
    if (node.type() != "Sequence") node.fail(kSupported);
    node.allow({"type", "pretokenizers"});
    const Node parts = node.at("pretokenizers");
    if (!parts.value.is_array()) parts.fail(kSupported);
    if (parts.value.size() == 1) return read_pre_tokenizer(parts.at(size_t{0}), model);
    if (parts.value.size() != 2 || parts.at(size_t{0}).type() != "Split") parts.fail(kSupported);
    const Node split = parts.at(size_t{0});
    split.allow({"type", "pattern", "behavior", "invert"});
    if (!split.at("pattern").has("Regex")) split.fail(kSupported);
    const Node pattern = split.at("pattern").at("Regex");
    const auto kind = split_kind_of_pattern(pattern.text());
    if (!kind) pattern.fail(kSupported);
    if (split.at("behavior").text() != "Isolated") split.at("behavior").fail("supported: \"Isolated\"");
    if (split.at("invert").flag()) split.at("invert").fail("supported: false");
    model.split = *kind;
    read_byte_level(parts.at(1), model, false);
    // In this place the package puts a space before each word, not before each text.
    if (model.add_prefix_space) parts.at(1).at("add_prefix_space").fail("supported after a Split: false");
}

// The model's own tokens; `ids` gets what added tokens and merges name. Returns how many there are.
size_t read_vocab(const Node& vocab, ByteLevelModel& model, std::unordered_map<std::string, int32_t>& ids,
                  const std::unordered_set<std::string>& added) {
    vocab.require(vocab.value.is_object() && !vocab.value.empty(), "an object of tokens with their ids");
    const size_t limit = 16 * (vocab.value.size() + 4096);  // a file of one token must not ask for gigabytes
    ids.reserve(vocab.value.size());
    for (const auto& [token, value] : vocab.value.items()) {
        const Node entry{value, vocab.path, vocab.name, -1, token};
        const auto id = to_size(entry.id());
        if (id >= limit)
            entry.fail(concat("ids this sparse are not supported: ", vocab.value.size(), " tokens in all"));
        if (model.tokens.size() <= id) model.tokens.resize(id + 1);
        if (model.tokens[id]) entry.fail(concat("id ", id, " belongs to another token too"));
        ids[token] = static_cast<int32_t>(id);
        model.tokens[id] = bytes_of_token(token);
        if (!model.tokens[id]) {
            if (added.count(token) == 0)
                entry.fail("required: the printable characters that stand for bytes, or an entry of added_tokens");
            model.tokens[id].reset();  // found as an added token only
        }
    }
    return vocab.value.size();
}

std::pair<std::string, std::string> read_pair(const Node& merge) {
    const Json& pair = merge.value;
    if (pair.is_array() && pair.size() == 2 && pair[0].is_string() && pair[1].is_string())
        return {pair[0].get<std::string>(), pair[1].get<std::string>()};
    const std::string both = merge.value.is_string() ? merge.text() : "";
    const size_t space = both.find(' ');
    merge.require(space != std::string::npos && both.find(' ', space + 1) == std::string::npos,
                  "two tokens, as \"a b\" or [\"a\", \"b\"]");
    return {both.substr(0, space), both.substr(space + 1)};
}

void read_merges(const Node& merges, ByteLevelModel& model, const std::unordered_map<std::string, int32_t>& ids) {
    merges.require(merges.value.is_array(), "a list of merges");
    model.merges.reserve(merges.value.size());
    for (size_t i = 0; i < merges.value.size(); ++i) {
        const Node merge = merges.at(i);
        const auto [left, right] = read_pair(merge);
        const auto id_of = [&](const std::string& token) {
            const auto found = ids.find(token);
            if (found == ids.end()) merge.fail("\"" + token + "\" is not in model.vocab");
            return found->second;
        };
        model.merges.push_back({id_of(left), id_of(right), id_of(left + right)});
    }
}

void refuse_unless_empty(const Node& model, const char* key) {
    if (model.has(key) && model.at(key).value != "") model.at(key).fail("supported: null");
}

size_t read_model(const Node& node, ByteLevelModel& model, std::unordered_map<std::string, int32_t>& ids,
                  const std::unordered_set<std::string>& added) {
    node.allow({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                "byte_fallback", "ignore_merges", "vocab", "merges"});
    if (node.has("type") && node.at("type").text() != "BPE") node.at("type").fail("supported: \"BPE\"");
    if (node.has("dropout") && node.at("dropout").value != 0) node.at("dropout").fail("supported: null");
    refuse_unless_empty(node, "continuing_subword_prefix");
    refuse_unless_empty(node, "end_of_word_suffix");
    model.ignore_merges = node.flag_or("ignore_merges", false);
    const size_t count = read_vocab(node.at("vocab"), model, ids, added);
    read_merges(node.at("merges"), model, ids);

    // unk_token, fuse_unk and byte_fallback treat characters without a token; with all 256 bytes there are none.
    std::array<bool, 256> present{};
    for (const auto& token : model.tokens)
        if (token && token->size() == 1) present[static_cast<unsigned char>((*token)[0])] = true;
    if (std::find(present.begin(), present.end(), false) != present.end()) {
        constexpr const char* kAll = "supported only when model.vocab has a token for each of the 256 bytes";
        if (node.has("unk_token")) node.at("unk_token").fail(kAll);
        if (node.flag_or("byte_fallback", false)) node.at("byte_fallback").fail(kAll);
    }
    return count;
}

// Ids follow the rule of the tokenizers package, which ignores "id": a token of the vocabulary keeps its id, others
// follow the vocabulary in order. A file with other ids is an error, since the package would read it differently.
void read_added_tokens(const Node& list, ByteLevelModel& model, const std::unordered_map<std::string, int32_t>& vocab,
                       size_t vocab_size) {
    list.require(list.value.is_array(), "a list");
    auto next = static_cast<int32_t>(vocab_size);
    std::unordered_set<std::string> seen;
    for (size_t i = 0; i < list.value.size(); ++i) {
        const Node node = list.at(i);
        node.allow({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
        AddedToken token{.id = node.at("id").id(),
                         .content = node.at("content").text(),
                         .single_word = node.at("single_word").flag(),
                         .lstrip = node.at("lstrip").flag(),
                         .rstrip = node.at("rstrip").flag(),
                         .normalized = node.at("normalized").flag(),
                         .special = node.at("special").flag()};
        node.at("content").require(!token.content.empty(), "a text that is not empty");
        if (!seen.insert(token.content).second) node.fail("this token is in added_tokens twice");
        const auto found = vocab.find(token.content);
        const int32_t expected = found != vocab.end() ? found->second : next++;
        if (token.id != expected)
            node.at("id").fail(concat("the tokenizers package would give it ", expected,
                                      " (tokens of model.vocab keep ", "their id, others are counted on from ",
                                      vocab_size, ")"));
        model.added.push_back(std::move(token));
    }
}

void read_template(const Node& node, ByteLevelModel& model) {
    node.allow({"type", "single", "pair", "special_tokens"});
    const Node single = node.at("single");
    single.require(single.value.is_array(), "a list");
    bool behind_text = false;
    for (size_t i = 0; i < single.value.size(); ++i) {
        const Node part = single.at(i);
        if (part.has("Sequence")) {
            if (behind_text || part.at("Sequence").at("id").text() != "A") part.fail("supported: one Sequence, \"A\"");
            behind_text = true;
            continue;
        }
        const std::string name = part.at("SpecialToken").at("id").text();
        const Node ids = node.at("special_tokens").at(name.c_str()).at("ids");
        ids.require(ids.value.is_array(), "a list of ids");
        for (size_t k = 0; k < ids.value.size(); ++k)
            (behind_text ? model.suffix : model.prefix).push_back(ids.at(k).id());
    }
    if (!behind_text) single.fail("required: a Sequence \"A\"");
}

void read_post_processor(const Node& node, ByteLevelModel& model) {
    const std::string type = node.type();
    if (type == "ByteLevel") return;  // offsets only
    if (type == "Sequence") {
        node.allow({"type", "processors"});
        node.at("processors").require(node.at("processors").value.is_array(), "a list");
        for (size_t i = 0; i < node.at("processors").value.size(); ++i)
            read_post_processor(node.at("processors").at(i), model);
        return;
    }
    if (type != "TemplateProcessing" || !model.prefix.empty() || !model.suffix.empty())
        node.fail("supported post-processors: null, ByteLevel, one TemplateProcessing, and a Sequence of these");
    read_template(node, model);
}

void check_ids(const Node& root, const ByteLevelModel& model) {
    int32_t largest = static_cast<int32_t>(model.tokens.size()) - 1;
    for (const AddedToken& token : model.added) largest = std::max(largest, token.id);
    for (const auto* ids : {&model.prefix, &model.suffix})
        for (const int32_t id : *ids)
            if (id > largest) root.at("post_processor").fail(concat("id ", id, " is not a token"));
}

}  // namespace

ByteLevelModel parse_tokenizer_json(const std::string& text, const std::string& path) {
    Json file;
    try {
        constexpr int kMaxDepth = 32;
        file = Json::parse(text, kMaxDepth);
    } catch (const JsonError& error) {
        throw DataError(concat(path, ": is not JSON: ", error.what()));
    }
    const Node root{file, path, ""};
    check<DataError>(file.is_object(), path, ": required: a JSON object with \"model\" and \"pre_tokenizer\"");
    root.allow({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
                "decoder", "model"});
    if (root.has("version") && root.at("version").value != "1.0") root.at("version").fail("supported: \"1.0\"");
    for (const char* key : {"truncation", "padding"})
        if (root.has(key))
            root.at(key).fail("not supported, as it would change the ids of long or short texts; set null");

    ByteLevelModel model;
    std::unordered_set<std::string> added;
    if (root.has("added_tokens"))
        for (const Json& token : file["added_tokens"])
            if (token.is_object() && token.contains("content") && token["content"].is_string())
                added.insert(token["content"].text());
    std::unordered_map<std::string, int32_t> ids;
    const size_t vocab_size = read_model(root.at("model"), model, ids, added);
    if (root.has("normalizer")) read_normalizer(root.at("normalizer"), model);
    read_pre_tokenizer(root.at("pre_tokenizer"), model);
    if (root.has("added_tokens")) read_added_tokens(root.at("added_tokens"), model, ids, vocab_size);
    if (root.has("post_processor")) read_post_processor(root.at("post_processor"), model);
    if (root.has("decoder") && root.at("decoder").type() != "ByteLevel")
        root.at("decoder").fail("supported decoders: null and ByteLevel");
    check_ids(root, model);
    return model;
}

std::string tokenizer_json(const ByteLevelModel& model) {
    const Json byte_level = {{"type", "ByteLevel"},
                             {"add_prefix_space", model.add_prefix_space},
                             {"trim_offsets", true},
                             {"use_regex", true}};
    Json pre_tokenizer = byte_level;
    if (model.split != SplitKind::gpt2) {
        pre_tokenizer["use_regex"] = false;
        const Json split = {{"type", "Split"},
                            {"pattern", {{"Regex", pattern_of(model.split)}}},
                            {"behavior", "Isolated"},
                            {"invert", false}};
        pre_tokenizer = {{"type", "Sequence"}, {"pretokenizers", Json::array({split, pre_tokenizer})}};
    }
    Json added = Json::array();
    for (const AddedToken& a : model.added)
        added.push_back({{"id", a.id},
                         {"content", a.content},
                         {"single_word", a.single_word},
                         {"lstrip", a.lstrip},
                         {"rstrip", a.rstrip},
                         {"normalized", a.normalized},
                         {"special", a.special}});
    // The name of each id in the file. Written by hand: an object that looks for each new key is quadratic.
    std::vector<std::string> names(model.tokens.size());
    for (size_t id = 0; id < names.size(); ++id)
        if (model.tokens[id]) names[id] = token_of_bytes(*model.tokens[id]);
    for (const AddedToken& a : model.added)
        if (to_size(a.id) < names.size()) names[to_size(a.id)] = a.content;
    std::string vocab, merges;
    for (size_t id = 0; id < names.size(); ++id)
        if (!names[id].empty()) vocab += concat(vocab.empty() ? "" : ",", "\n      ", Json(names[id]).dump(), ": ", id);
    for (const Merge& m : model.merges)
        merges += concat(merges.empty() ? "" : ",", "\n      [", Json(names[to_size(m.left)]).dump(), ", ",
                         Json(names[to_size(m.right)]).dump(), "]");
    const Json normalizer = model.nfc ? Json{{"type", "NFC"}} : Json(nullptr);
    return concat(
        "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": ", added.dump(),
        ",\n  \"normalizer\": ", normalizer.dump(), ",\n  \"pre_tokenizer\": ", pre_tokenizer.dump(),
        ",\n  \"post_processor\": null,\n  \"decoder\": ", byte_level.dump(),
        ",\n  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": null,\n",
        "    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n    \"fuse_unk\": false,\n",
        "    \"byte_fallback\": false,\n    \"ignore_merges\": ", model.ignore_merges ? "true" : "false",
        ",\n    \"vocab\": {", vocab, "\n    },\n    \"merges\": [", merges, "\n    ]\n  }\n}\n");
}

namespace {

// Classes of transformers 5 that keep vocabulary and merges of a tokenizer.json and replace what is before them:
// normalizer, pattern, and the space before a text, which is add_prefix_space of tokenizer_config.json, absent: false.
struct MakingClass {
    std::string_view name;
    std::optional<SplitKind> split;  // none: a pattern that Tutti lacks
    bool nfc;
};
constexpr MakingClass kMakingClasses[] = {
    {"GPT2Tokenizer", SplitKind::gpt2, false},     {"Qwen2Tokenizer", SplitKind::qwen, true},
    {"Qwen3_5Tokenizer", SplitKind::qwen35, true}, {"GPTNeoXTokenizer", SplitKind::gpt2, true},
    {"CodeGenTokenizer", SplitKind::gpt2, false},  {"RobertaTokenizer", SplitKind::gpt2, false},
    {"BartTokenizer", SplitKind::gpt2, false},     {"LongformerTokenizer", SplitKind::gpt2, false},
    {"WhisperTokenizer", SplitKind::gpt2, false},  {"CohereTokenizer", std::nullopt, true}};

void check_class(const FilesBeside& beside, const ByteLevelModel& model, const std::string& path) {
    const std::string given = beside.tokenizer_class(), name = beside.class_in_transformers();
    const auto* made = std::ranges::find_if(kMakingClasses, [&](const auto& c) { return name.starts_with(c.name); });
    if (made == std::end(kMakingClasses)) return;
    const auto require = [&](bool same, const auto&... differs) {
        check<DataError>(same, path, ": transformers gives other ids: its ", name, " (by ",
                         given.empty() ? "config.json" : "tokenizer_config.json", " beside it) ", differs...,
                         "; if the file is right, \"tokenizer_class\": \"PreTrainedTokenizerFast\" in ",
                         "tokenizer_config.json keeps it");
    };
    const bool space = beside.flag("add_prefix_space").value_or(false);
    require(space == model.add_prefix_space, "has add_prefix_space = ", space ? "true" : "false",
            " by tokenizer_config.json, this file the opposite");
    require(made->split == model.split, "splits texts by ",
            made->split ? concat("the pattern of ", name_of(*made->split)) : "a pattern that Tutti lacks",
            ", this file by that of ", name_of(model.split));
    require(made->nfc == model.nfc,
            made->nfc ? "normalizes to NFC, this file does not" : "does not normalize, this file does (NFC)");
    require(!model.ignore_merges, "merges every word, this file has ignore_merges = true");
}

}  // namespace

std::unique_ptr<const Tokenizer> open_tokenizer_json(const std::string& path) {
    ByteLevelModel model = parse_tokenizer_json(read_file(path), path);
    const FilesBeside beside(path);
    check_class(beside, model, path);
    auto next = static_cast<int32_t>(model.tokens.size());
    for (const AddedToken& token : model.added) next = std::max(next, token.id + 1);
    const auto in_vocab = [&](const std::string& text) -> std::optional<int32_t> {
        const auto bytes = bytes_of_token(text);
        const auto found = bytes ? std::ranges::find(model.tokens, bytes) : model.tokens.end();
        return found != model.tokens.end() ? std::optional(static_cast<int32_t>(found - model.tokens.begin()))
                                           : std::nullopt;
    };
    beside.add_tokens(model.added, in_vocab, next);
    model.special = beside.special_ids([&](const std::string& text) -> std::optional<int32_t> {
        const auto added = std::ranges::find(model.added, text, &AddedToken::content);
        return added != model.added.end() ? std::optional(added->id) : std::nullopt;
    });
    return std::make_unique<ByteLevelTokenizer>(std::move(model), path);
}

bool is_of_sentencepiece(const std::string& path) {
    const auto file = Json::try_parse(read_file(path));
    const auto type_of = [&](const char* part) {
        const Json* value = file && file->is_object() ? file->find(part) : nullptr;
        const Json* type = value && value->is_object() ? value->find("type") : nullptr;
        return type && type->is_string() ? type->text() : "";
    };
    const Json* model = file && file->is_object() ? file->find("model") : nullptr;
    const Json* fallback = model && model->is_object() ? model->find("byte_fallback") : nullptr;
    const Json* words = file && file->is_object() ? file->find("pre_tokenizer") : nullptr;
    const bool byte_level = words != nullptr && words->dump().find("\"ByteLevel\"") != std::string::npos;
    return type_of("model") == "Unigram" || type_of("pre_tokenizer") == "Metaspace" ||
           (fallback != nullptr && *fallback == true && !byte_level);
}

}  // namespace tutti::text
