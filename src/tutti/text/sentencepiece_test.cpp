// text/sentencepiece_test.cpp: ids and texts of the Python package (testdata/, by
// tests/peer/make_tokenizer_vectors.py), and the message of a build without the library.
#include "tutti/text/sentencepiece.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "tutti/base/json.h"
#include "tutti/base/read_file.h"
#include "tutti/base/testing/scratch.h"

namespace tutti::text::sentencepiece_test {
namespace {

std::string testdata(const std::string& name) {
    return (std::filesystem::path(__FILE__).parent_path() / "testdata" / name).string();
}

TEST(Sentencepiece, IdsAndTextsOfTheLibraryInPython) {
    if (sentencepiece_version().empty()) {
        EXPECT_EQ(missing("reads no sentencepiece models; install libsentencepiece-dev",
                          message_of<UsageError>([] { make_tokenizer(testdata("sentencepiece.model")); })),
                  "");
        return;
    }
    const auto tokenizer = make_tokenizer(testdata("sentencepiece.model"));
    const auto vectors = Json::parse(read_file(testdata("vectors.json"))).at("sentencepiece");
    ASSERT_EQ(vectors.size(), 27u);
    for (const auto& vector : vectors) {
        const std::string text = vector.at("text").text(), decoded = vector.at("decoded").text();
        const auto ids = tokenizer->encode(text);
        EXPECT_EQ(ids, vector.at("ids").get<std::vector<int32_t>>()) << text;
        EXPECT_EQ(tokenizer->decode(ids), decoded);
        std::string shown;  // one by one, as `generate` does: the first blank stays
        for (const int32_t id : ids) shown += tokenizer->piece(id);
        EXPECT_EQ(shown, ids.empty() ? "" : " " + decoded);
    }
    EXPECT_EQ(tokenizer->vocab(), 450);
    EXPECT_EQ(tokenizer->special().bos, 1);
    EXPECT_EQ(tokenizer->special().stop, std::vector<int32_t>{2});
    EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{1, 2}, ShowSpecial::no), "");
    EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{1, 2}), "<s></s>");
    EXPECT_EQ(missing("byte offset 2 of the text begins no character",
                      message_of<DataError>([&] { tokenizer->encode("ab\xFF"); })),
              "");
}

// Llama 2 and Mistral: tokenizer.model with a tokenizer_config.json that asks for <s>.
TEST(Sentencepiece, FilesBesideItAskForABos) {
    if (sentencepiece_version().empty()) return;  // said above
    const ScratchFolder folder;
    std::filesystem::copy(testdata("sentencepiece.model"), folder.path("tokenizer.model"));
    EXPECT_EQ(make_tokenizer(folder.path(""))->prefix(), std::vector<int32_t>{});
    folder.write("tokenizer_config.json", R"({"add_bos_token": true, "bos_token": "<s>", "eos_token": "<unk>"})");
    EXPECT_EQ(make_tokenizer(folder.path(""))->prefix(), std::vector<int32_t>{1});
    EXPECT_EQ(make_tokenizer(folder.path(""))->special().stop, std::vector<int32_t>{0});
    folder.write("generation_config.json", R"({"eos_token_id": [2, 7]})");
    EXPECT_EQ(make_tokenizer(folder.path(""))->special().stop, (std::vector<int32_t>{2, 7}));
    folder.write("tokenizer_config.json", R"({"add_bos_token": false, "bos_token": "<s>"})");
    EXPECT_EQ(make_tokenizer(folder.path(""))->prefix(), std::vector<int32_t>{});
}

// A ChatML fine-tune of Llama 2. `expected` as transformers 5.24 puts them: added tokens, and the ids of the texts
// between, which have a space of their own before them at the beginning only, with legacy = true everywhere.
TEST(Sentencepiece, TokensOfTheFilesBesideItCount) {
    if (sentencepiece_version().empty()) return;  // said above
    const ScratchFolder folder;
    std::filesystem::copy(testdata("sentencepiece.model"), folder.path("tokenizer.model"));
    const auto plain = make_tokenizer(testdata("sentencepiece.model"));
    // The ids of a text without the space before it: those behind "\n", which is a token by itself.
    const auto inside = [&](const std::string& text) {
        const auto all = plain->encode("\n" + text), before = plain->encode("\n");
        return std::vector<int32_t>(all.begin() + static_cast<std::ptrdiff_t>(before.size()), all.end());
    };
    const auto joined_ids = [](std::initializer_list<std::vector<int32_t>> parts) {
        std::vector<int32_t> all;
        for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
        return all;
    };
    folder.write("added_tokens.json", R"({"<|im_start|>": 450, "<|im_end|>": 451})");
    const auto config = [&](const std::string& more) {
        folder.write("tokenizer_config.json",
                     R"({"tokenizer_class": "LlamaTokenizer", "add_bos_token": true, "bos_token": "<s>",
                         "eos_token": "<|im_end|>", )" +
                         more + R"("unk_token": "<unk>"})");
        return make_tokenizer(folder.path(""));
    };
    const std::string text = "<|im_start|>user\nthe man<|im_end|>\n";
    const auto chat = config("\"legacy\": false, ");
    EXPECT_EQ(chat->encode(text), joined_ids({{450}, inside("user\nthe man"), {451}, inside("\n")}));
    EXPECT_EQ(chat->decode(chat->encode(text)), text);
    EXPECT_EQ(chat->encode("the man<|im_end|>the<s>"),
              joined_ids({plain->encode("the man"), {451}, inside("the"), {1}}));
    EXPECT_EQ(chat->vocab(), 452);
    EXPECT_EQ(chat->prefix(), std::vector<int32_t>{1});
    EXPECT_EQ(chat->special().stop, std::vector<int32_t>{451});
    EXPECT_EQ(chat->decode(std::vector<int32_t>{1, 451}, ShowSpecial::no), "");
    const auto legacy = config("\"legacy\": true, \"add_eos_token\": true, ");
    EXPECT_EQ(legacy->encode(text), joined_ids({{450}, plain->encode("user\nthe man"), {451}, plain->encode("\n")}));
    EXPECT_EQ(legacy->suffix(), std::vector<int32_t>{451});
    EXPECT_NE(legacy->fingerprint(), chat->fingerprint());
    folder.write("added_tokens.json", R"({"<|im_start|>": 450})");
    EXPECT_EQ(missing("tokenizer_config.json: eos_token = \"<|im_end|>\": is no token of",
                      message_of<DataError>([&] { config(""); })),
              "");
}

// tokenizer.json as transformers writes it for Llama 2: the model beside it is used, with the tokens that it adds.
TEST(Sentencepiece, StandsForATokenizerJsonOfItsKind) {
    if (sentencepiece_version().empty()) return;  // said above
    const ScratchFolder folder;
    std::filesystem::copy(testdata("sentencepiece.model"), folder.path("tokenizer.model"));
    const auto json =
        folder.write("tokenizer.json", R"({"added_tokens": [{"id": 450, "content": "<|x|>", "special": true}],
        "pre_tokenizer": null, "model": {"type": "BPE", "byte_fallback": true, "vocab": {"\u2581h": 0}, "merges": []}})");
    const auto tokenizer = make_tokenizer(folder.path(""));
    EXPECT_EQ(tokenizer->encode("<|x|>"), std::vector<int32_t>{450});
    EXPECT_EQ(missing("tokenizer.model, in place of the tokenizer.json beside it", tokenizer->description()), "");
    EXPECT_EQ(missing("name the tokenizer.model of the same directory",
                      message_of<UsageError>([&] { make_tokenizer(json); })),
              "");
}

// An added token that takes the space before it forbids all cuts: the library then gets each text whole.
TEST(Sentencepiece, CutsChangeNoId) {
    if (sentencepiece_version().empty()) return;  // said above
    const ScratchFolder folder;
    std::filesystem::copy(testdata("sentencepiece.model"), folder.path("tokenizer.model"));
    folder.write("tokenizer_config.json",
                 R"({"added_tokens_decoder": {"450": {"content": "<|never|>", "lstrip": true}}})");
    const auto whole = make_tokenizer(folder.path("")), cut = make_tokenizer(testdata("sentencepiece.model"));
    std::mt19937 random(3);
    const std::vector<std::string> parts = {"the",          " ",   "  ",   "\n", "\n\n",   "\u00e9",
                                            "\u4e16\u754c", "ing", " man", "x",  "\u2581", "."};
    for (int trial = 0; trial < 300; ++trial) {
        std::string text;
        for (unsigned n = random() % 60; n > 0; --n) text += parts[random() % parts.size()];
        EXPECT_EQ(whole->safe_cut(text, 1), text.size());
        const auto expected = whole->encode(text);
        EXPECT_EQ(cut->encode(text), expected) << text;
        const size_t at = cut->safe_cut(text, text.size() / 2);
        std::vector<int32_t> ids;
        const auto encoder = cut->make_encoder();
        encoder->encode(std::string_view(text).substr(0, at), ids);
        if (at > 0) encoder->encode_rest(std::string_view(text).substr(at), ids);
        EXPECT_EQ(ids, expected) << text;
    }
    std::string book;
    for (int i = 0; i < 20000; ++i) book += parts[random() % parts.size()];
    EXPECT_LT(cut->safe_cut(book, 1000), 1100u);
}

TEST(Sentencepiece, DamagedFiles) {
    if (sentencepiece_version().empty()) return;  // said above
    const ScratchFolder folder;
    const auto path = folder.write("t.model", "this is no model");
    EXPECT_EQ(missing("t.model: is not a sentencepiece model", message_of<DataError>([&] { make_tokenizer(path); })),
              "");
}

}  // namespace
}  // namespace tutti::text::sentencepiece_test
