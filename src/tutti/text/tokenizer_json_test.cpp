// text/tokenizer_json_test.cpp: supported contents of tokenizer.json, and refusals that name the field.
#include "tutti/text/tokenizer_json.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "tutti/base/json.h"
#include "tutti/base/testing/scratch.h"

namespace tutti::text {
namespace {

// A whole file with 256 bytes and one merge, "ab" = 256.
Json small_file() {
    ByteLevelModel model;
    for (int byte = 0; byte < 256; ++byte) model.tokens.emplace_back(std::string(1, static_cast<char>(byte)));
    model.tokens.emplace_back("ab");
    model.merges = {{'a', 'b', 256}};
    return Json::parse(tokenizer_json(model));
}

ByteLevelModel parse(const Json& file) { return parse_tokenizer_json(file.dump(), "t.json"); }

TEST(TokenizerJson, WhatIsWrittenReadsBack) {
    ByteLevelModel model;
    model.split = SplitKind::qwen;
    model.nfc = model.ignore_merges = true;
    model.added = {{.id = 0, .content = "<|end|>", .special = true}, {.id = 258, .content = "late", .lstrip = true}};
    model.tokens.emplace_back("<|end|>");
    for (int byte = 0; byte < 256; ++byte) model.tokens.emplace_back(std::string(1, static_cast<char>(byte)));
    model.tokens.emplace_back("\"\n");
    model.merges = {{1 + '"', 1 + '\n', 257}};
    const ByteLevelModel read = parse_tokenizer_json(tokenizer_json(model), "t.json");
    EXPECT_EQ(read.tokens, model.tokens);
    EXPECT_EQ(read.merges, model.merges);
    EXPECT_EQ(read.split, model.split);
    EXPECT_TRUE(read.nfc && read.ignore_merges && !read.add_prefix_space);
    ASSERT_EQ(read.added.size(), 2u);
    EXPECT_TRUE(read.added[0].special && !read.added[0].lstrip && read.added[1].lstrip && !read.added[1].special);
    EXPECT_EQ(ByteLevelTokenizer(read, "t").fingerprint(), ByteLevelTokenizer(model, "t").fingerprint());
}

// "/merges/0" -> file["merges"][0]
Json& member_at(Json& file, const std::string& pointer) {
    Json* place = &file;
    std::istringstream keys(pointer.substr(1));
    for (std::string key; std::getline(keys, key, '/');)
        place = place->is_array() ? &(*place)[std::stoul(key)] : &(*place)[key];
    return *place;
}

// A change of the small file, and a part of the expected message.
struct Refusal {
    std::string pointer, value, message;
};

TEST(TokenizerJson, RefusesWhatWouldChangeIds) {
    const Refusal refusals[] = {
        {"/version", "\"2.0\"", "version = \"2.0\": supported: \"1.0\""},
        {"/truncation", R"({"max_length": 512})", "truncation = {\"max_length\":512}: not supported"},
        {"/padding", R"({"strategy": "BatchLongest"})", "padding = "},
        {"/normalizer", R"({"type": "Lowercase"})", "normalizer = {\"type\":\"Lowercase\"}: supported normalizers"},
        {"/normalizer", R"({"type": "NFC", "form": 2})", "normalizer.form = 2: this version does not know this field"},
        {"/pre_tokenizer", "null", "supported pre-tokenizers: ByteLevel (GPT-2)"},
        {"/pre_tokenizer", R"({"type": "Whitespace"})", "supported pre-tokenizers"},
        {"/pre_tokenizer/use_regex", "false", "supported here: ByteLevel with use_regex = true"},
        {"/pre_tokenizer", R"x({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "\\w+"},
          "behavior": "Isolated", "invert": false}, {"type": "ByteLevel", "use_regex": false}]})x",
         "pre_tokenizer.pretokenizers[0].pattern.Regex = \"\\\\w+\": supported pre-tokenizers"},
        {"/decoder", R"({"type": "WordPiece"})", "supported decoders: null and ByteLevel"},
        {"/post_processor", R"({"type": "BertProcessing"})", "supported post-processors"},
        {"/model/type", "\"Unigram\"", "model.type = \"Unigram\": supported: \"BPE\""},
        {"/model/dropout", "0.1", "model.dropout = 0.1: supported: null"},
        {"/model/continuing_subword_prefix", "\"##\"", "model.continuing_subword_prefix = \"##\""},
        {"/model/end_of_word_suffix", "\"</w>\"", "model.end_of_word_suffix"},
        {"/model/cache", "1", "model.cache = 1: this version does not know this field"},
        {"/model/vocab/ab", "97", "id 97 belongs to another token too"},
        {"/model/vocab/ab", "-1", "model.vocab[\"ab\"] = -1: required: an id"},
        {"/model/vocab/ab", "2000000000", "ids this sparse are not supported"},
        {"/model/vocab/a b", "257", "model.vocab[\"a b\"] = 257: required: the printable characters"},
        {"/model/merges/0", "\"a b c\"", "model.merges[0] = \"a b c\": required: two tokens"},
        {"/model/merges/0", R"(["a", "c"])", "\"ac\" is not in model.vocab"},
        {"/added_tokens", R"([{"id": 300, "content": "<x>", "single_word": false, "lstrip": false, "rstrip": false,
          "normalized": false, "special": true}])",
         "added_tokens[0].id = 300: the tokenizers package would give it 257"},
        {"/added_tokens", R"([{"id": 257, "content": "", "single_word": false, "lstrip": false, "rstrip": false,
          "normalized": false, "special": true}])",
         "added_tokens[0].content = \"\": required: a text that is not empty"},
        {"/added_tokens", R"([{"id": 257, "content": "x"}])", "added_tokens[0].single_word is missing"},
    };
    for (const Refusal& r : refusals) {
        Json file = small_file();
        ASSERT_NO_THROW(parse(file));
        member_at(file, r.pointer) = Json::parse(r.value);
        EXPECT_EQ(missing(r.message, message_of<DataError>([&] { parse(file); })), "") << r.pointer;
    }
    Json without = small_file();
    without.erase("model");
    EXPECT_EQ(missing("t.json: model is missing", message_of<DataError>([&] { parse(without); })), "");
    EXPECT_EQ(missing("is not JSON", message_of<DataError>([] { parse_tokenizer_json("{\"a\": ", "t.json"); })), "");
}

TEST(TokenizerJson, DamagedFilesAreDataErrors) {
    EXPECT_EQ(missing("byte 32: nested more than 32 levels deep",
                      message_of<DataError>([] { parse_tokenizer_json(std::string(1000000, '['), "t.json"); })),
              "");
    std::mt19937 random(6);
    const std::string whole = tokenizer_json(parse(small_file()));
    const std::string_view likely = "\"{}[],:0129-eE. abt\\\n\xFF";
    int refused = 0;
    for (int round = 0; round < 1500; ++round) {
        std::string text = whole;
        for (size_t n = 1 + random() % 4; n > 0; --n) {
            const size_t at = random() % text.size();
            if (random() % 3 == 0)
                text.erase(at, 1 + random() % 20);
            else
                text[at] = likely[random() % likely.size()];
        }
        try {
            ByteLevelTokenizer(parse_tokenizer_json(text, "t.json"), "t.json").encode("some abc text");
        } catch (const DataError&) {  // any other exception, or a sanitizer, ends the test
            ++refused;
        }
    }
    EXPECT_GT(refused, 700);
}

TEST(TokenizerJson, ByteFallbackMattersOnlyWhereBytesAreMissing) {
    Json file = small_file();
    file["model"]["byte_fallback"] = true;
    file["model"]["unk_token"] = "<unk>";
    EXPECT_NO_THROW(parse(file));
    file["model"]["vocab"].erase("c");
    EXPECT_EQ(missing("model.unk_token = \"<unk>\": supported only when", message_of<DataError>([&] { parse(file); })),
              "");
    file["model"]["unk_token"] = nullptr;
    EXPECT_EQ(missing("model.byte_fallback = true", message_of<DataError>([&] { parse(file); })), "");
}

TEST(TokenizerJson, SpecialIdsComeFromTheFilesBesideIt) {
    const ScratchFolder folder;
    Json file = small_file();
    for (const char* content : {"<s>", "</s>"})
        file["added_tokens"].push_back({{"id", 257 + file["added_tokens"].size()},
                                        {"content", content},
                                        {"single_word", false},
                                        {"lstrip", false},
                                        {"rstrip", false},
                                        {"normalized", false},
                                        {"special", true}});
    folder.write("tokenizer.json", file.dump());
    EXPECT_EQ(make_tokenizer(folder.path(""))->special().eos, std::nullopt);
    folder.write("tokenizer_config.json", R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>"})");
    EXPECT_EQ(make_tokenizer(folder.path(""))->special().stop, std::vector<int32_t>{258});
    folder.write("generation_config.json", R"({"bos_token_id": 5, "eos_token_id": [258, 7], "pad_token_id": 9})");
    const SpecialIds special = make_tokenizer(folder.path(""))->special();
    EXPECT_EQ(special.bos, 257);
    EXPECT_EQ(special.eos, 258);
    EXPECT_EQ(special.pad, 9);
    EXPECT_EQ(special.stop, (std::vector<int32_t>{258, 7}));
    std::filesystem::remove(folder.path("generation_config.json"));
    folder.write("tokenizer_config.json", R"({"eos_token": "a", "add_bos_token": true})");
    EXPECT_EQ(make_tokenizer(folder.path(""))->special().bos, std::nullopt);
    EXPECT_EQ(make_tokenizer(folder.path(""))->special().stop, make_tokenizer(folder.path(""))->encode("a"));
    EXPECT_TRUE(make_tokenizer(folder.path(""))->prefix().empty());  // as in transformers 5: the post-processor decides
    folder.write("tokenizer_config.json", "{");
    EXPECT_EQ(
        missing("tokenizer_config.json: is not JSON", message_of<DataError>([&] { make_tokenizer(folder.path("")); })),
        "");
}

// What transformers 5.24 makes of these files: tokens are added, counted on behind the file's, or take new flags. What
// has no id, or another one, is refused by name.
TEST(TokenizerJson, TokensOfTheFilesBesideItCount) {
    const ScratchFolder folder;
    folder.write("tokenizer.json", small_file().dump());  // 257 ids, "ab" = 256
    const auto ids = [&](const std::string& text) { return make_tokenizer(folder.path(""))->encode(text); };
    const auto refused = [&] { return message_of<DataError>([&] { make_tokenizer(folder.path("")); }); };
    folder.write("added_tokens.json", R"({"<|x|>": 257})");
    EXPECT_EQ(ids("a<|x|>b"), (std::vector<int32_t>{'a', 257, 'b'}));
    folder.write("tokenizer_config.json", R"({"eos_token": "<|y|>", "added_tokens_decoder":
        {"258": {"content": "<|y|>", "lstrip": true, "special": true}}})");
    EXPECT_EQ(ids("a <|y|>b<|x|>"), (std::vector<int32_t>{'a', 258, 'b', 257}));
    EXPECT_EQ(make_tokenizer(folder.path(""))->special().stop, std::vector<int32_t>{258});
    EXPECT_EQ(make_tokenizer(folder.path(""))->vocab(), 259);
    folder.write("special_tokens_map.json", R"({"additional_special_tokens": ["ab", "<|z|>"]})");
    EXPECT_EQ(missing("special_tokens_map.json: additional_special_tokens = \"<|z|>\": is no token of", refused()), "");
    folder.write("special_tokens_map.json", R"({"pad_token": {"content": "[PAD]"}})");
    EXPECT_EQ(missing("special_tokens_map.json: pad_token = \"[PAD]\": is no token of", refused()), "");
    folder.write("special_tokens_map.json", "{}");
    folder.write("tokenizer_config.json", "{}");
    folder.write("added_tokens.json", R"({"<|x|>": 270})");
    EXPECT_EQ(missing("added_tokens.json: \"<|x|>\": has id 270 here, 257 counted on behind", refused()), "");
    folder.write("added_tokens.json", R"({"ab": 7})");
    EXPECT_EQ(missing("added_tokens.json: \"ab\": has id 7 here, 256 in", refused()), "");
    std::filesystem::remove(folder.path("added_tokens.json"));
    folder.write("tokenizer_config.json", R"({"split_special_tokens": true})");
    EXPECT_EQ(missing("split_special_tokens = true", refused()), "");
    const std::pair<const char*, const char*> wrong[] = {
        {"[]", "tokenizer_config.json: required: a JSON object, got []"},
        {R"({"eos_token": 3})",
         "tokenizer_config.json: eos_token = 3: required: a text, or an object whose content is one"},
        {R"({"bos_token": {"content": 5}})", R"(bos_token = {"content":5}: required: a text, or)"},
        {R"({"split_special_tokens": "no"})", R"(split_special_tokens = "no": required: true or false)"},
        {R"({"added_tokens_decoder": [3]})", "added_tokens_decoder = [3]: required: an object of tokens by id"},
        {R"({"added_tokens_decoder": {"x": {"content": "ab"}}})", R"("ab": its id is "x", required: a number)"},
        {R"({"tokenizer_class": 5})", "tokenizer_class = 5: required: a text"}};
    for (const auto& [file, said] : wrong) {
        folder.write("tokenizer_config.json", file);
        EXPECT_EQ(missing(said, refused()), "") << file;
    }
}

// What transformers 5.24 makes of every tokenizer.json with these classes (read off its backend_tokenizer), so that ids
// are those of the file where the file says the same. Other classes take the file as it is.
TEST(FilesBeside, WhatAClassMakesItselfIsThatOfTheFile) {
    struct Class {
        const char* name;
        std::string split;  // "": any
        bool nfc;
    };
    const Class classes[] = {{"GPT2Tokenizer", "gpt2", false},        {"GPT2TokenizerFast", "gpt2", false},
                             {"Qwen2Tokenizer", "qwen", true},        {"Qwen2TokenizerFast", "qwen", true},
                             {"Qwen3_5Tokenizer", "qwen35", true},    {"GPTNeoXTokenizerFast", "gpt2", true},
                             {"CodeGenTokenizer", "gpt2", false},     {"RobertaTokenizer", "gpt2", false},
                             {"BartTokenizer", "gpt2", false},        {"LongformerTokenizer", "gpt2", false},
                             {"WhisperTokenizerFast", "gpt2", false}, {"CohereTokenizer", "digits", true},
                             {"PreTrainedTokenizerFast", "", false},  {"LlamaTokenizer", "", false},
                             {"NoSuchTokenizer", "", false}};
    const auto flag = [](int which) { return which == 0 ? "" : which == 1 ? "false" : "true"; };
    const ScratchFolder folder;
    std::mt19937 draw(7);
    std::map<std::string, int> kept, refused;
    for (int i = 0; i < 250; ++i) {
        const Class& c = classes[draw() % std::size(classes)];
        ByteLevelModel model = parse(small_file());
        const auto one_in = [&](unsigned n) { return draw() % n == 0; };
        const auto of_class = split_kind_named(c.split);
        model.split = of_class && !one_in(3) ? *of_class : static_cast<SplitKind>(draw() % 4);
        model.nfc = one_in(3) ? !c.nfc : c.nfc;
        model.ignore_merges = one_in(4);
        model.add_prefix_space = model.split == SplitKind::gpt2 && one_in(3);
        const unsigned space = draw() % 3;
        folder.write("tokenizer_config.json",
                     concat("{\"tokenizer_class\": \"", c.name, "\"",
                            space == 0 ? "" : concat(", \"add_prefix_space\": ", flag(static_cast<int>(space))), "}"));
        const std::string path = folder.write("tokenizer.json", tokenizer_json(model));
        const std::string message = message_of<DataError>([&] { make_tokenizer(path); });
        const bool same = c.split.empty() || (c.split == name_of(model.split) && c.nfc == model.nfc &&
                                              (space == 2) == model.add_prefix_space && !model.ignore_merges);
        const std::string required =
            same ? "nothing was thrown" : concat("other ids: its ", c.name, " (by tokenizer_config.json beside it)");
        EXPECT_EQ(missing(required, message), "") << tokenizer_json(model);
        ++(same ? kept : refused)[c.name];
    }
    for (const Class& c : classes) {
        EXPECT_EQ(kept.contains(c.name), c.split != "digits") << c.name;
        EXPECT_EQ(refused.contains(c.name), !c.split.empty()) << c.name;
    }
}

// Where no file names a class, transformers 5.24 takes that of the model which config.json describes.
TEST(FilesBeside, TheClassMayBeThatOfTheModel) {
    const ScratchFolder folder;
    ByteLevelModel model = parse(small_file());
    model.split = SplitKind::llama3;
    const std::string path = folder.write("tokenizer.json", tokenizer_json(model));
    const auto message = [&] { return message_of<DataError>([&] { make_tokenizer(path); }); };
    for (const char* type : {"gpt2", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "qwen3_next", "qwen3_5", "mamba2"}) {
        folder.write("config.json", concat("{\"model_type\": \"", type, "\"}"));
        EXPECT_EQ(missing("(by config.json beside it) splits texts by the pattern of", message()), "") << type;
    }
    for (const char* text :
         {"{\"model_type\": \"llama\"}", "{\"model_type\": \"mistral\"}", "{\"model_type\": 5}", "# no JSON", "[]"}) {
        folder.write("config.json", text);
        EXPECT_EQ(message(), "nothing was thrown") << text;
    }
    folder.write("config.json", R"({"model_type": "llama", "tokenizer_class": "GPT2Tokenizer"})");
    EXPECT_EQ(missing("GPT2Tokenizer (by config.json beside it) splits", message()), "");
    // Models whose class takes the file whatever is named, as OLMo 2, which names GPT2Tokenizer and splits otherwise.
    folder.write("tokenizer_config.json", R"({"tokenizer_class": "GPT2Tokenizer"})");
    for (const char* type : {"olmo2", "olmo3", "mistral", "mixtral", "phi3", "granite", "glm", "glm4"}) {
        folder.write("config.json",
                     concat("{\"model_type\": \"", type, "\", \"tokenizer_class\": \"Qwen2Tokenizer\"}"));
        EXPECT_EQ(message(), "nothing was thrown") << type;
    }
    for (const char* type : {"llama", "lfm2", "exaone4", "seed_oss"}) {
        folder.write("config.json", concat("{\"model_type\": \"", type, "\"}"));
        EXPECT_EQ(missing("GPT2Tokenizer (by tokenizer_config.json beside it) splits", message()), "") << type;
    }
    folder.write("config.json", R"({"model_type": "gpt2"})");
    folder.write("tokenizer_config.json", R"({"tokenizer_class": "PreTrainedTokenizerFast"})");
    EXPECT_EQ(message(), "nothing was thrown");
}

// A text of all bytes, valid UTF-8 or not, has the ids of the tokenizer "bytes" and decodes to itself.
TEST(TokenizerJson, OfBytes) {
    const ScratchFolder folder;
    const auto written = make_tokenizer(folder.write("tokenizer.json", tokenizer_json_of_bytes()));
    const auto bytes = make_tokenizer("bytes");
    std::string text = "It's a text, 1999\u2026\n\n\t end ";
    for (int i = 0; i < 1024; ++i) text += static_cast<char>(i * 7);
    EXPECT_EQ(written->vocab(), 256);
    EXPECT_EQ(written->encode(text), bytes->encode(text));
    EXPECT_EQ(written->decode(written->encode(text), ShowSpecial::yes), text);
}

}  // namespace
}  // namespace tutti::text
