// data/tokenizers/sentencepiece_test.cpp: ids and texts of the Python package (testdata/, by
// tests/peer/make_tokenizer_vectors.py), and the message of a build without the library.
#include "tutti/data/tokenizers/sentencepiece.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tutti/base/json.h"
#include "tutti/base/read_file.h"
#include "tutti/data/testing/token_files.h"

namespace tutti::data {
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

TEST(Sentencepiece, DamagedFiles) {
    if (sentencepiece_version().empty()) return;  // said above
    const ScratchFolder folder;
    const auto path = folder.write("t.model", "this is no model");
    EXPECT_EQ(missing("t.model: is not a sentencepiece model", message_of<DataError>([&] { make_tokenizer(path); })),
              "");
}

}  // namespace
}  // namespace tutti::data
