// data/record_ids_test.cpp: the ids of a record are those of its whole text, for every tokenizer, and masked tokens
// show no more than its prompt.
#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "tutti/base/json.h"
#include "tutti/base/read_file.h"
#include "tutti/base/to_size.h"
#include "tutti/data/testing/token_files.h"
#include "tutti/data/text_tokens.h"
#include "tutti/text/sentencepiece.h"

namespace tutti::data {
namespace {

std::string of_testdata(const std::string& name) {
    return (std::filesystem::path(__FILE__).parent_path() / "../text/testdata" / name).string();
}

// Words, blanks of all kinds, marks that join the letter before, added tokens and parts of them.
std::string draw_text(std::mt19937& random, int most) {
    static const std::vector<std::string> kParts = {
        "the",    " man",   " ",      "  ",    "\n",       "2+2=",          "4",     "a", " a", "ing", "\t", "e",
        "\u0301", "\u00e9", "\u4e16", "<|end", "oftext|>", "<|endoftext|>", "don't", "."};
    std::string text;
    const int parts = std::uniform_int_distribution<int>(0, most)(random);
    for (int i = 0; i < parts; ++i) text += kParts[random() % kParts.size()];
    return text;
}

void expect_ids_of_whole_texts(const text::Tokenizer& tokenizer, const std::string& name) {
    std::mt19937 random(11);
    const ScratchFolder folder;
    std::vector<std::pair<std::string, std::string>> records;
    std::string lines;
    for (int i = 0; i < 400; ++i) {
        records.emplace_back(draw_text(random, 6), draw_text(random, 6));
        if (i == 0) records.back() = {"2+2=", "4"};
        if (records.back().first.empty()) records.back().first = "x";
        lines += Json{{"prompt", records.back().first}, {"completion", records.back().second}}.dump() + "\n";
    }
    const auto source = open_records({folder.write("r.jsonl", lines)}, tokenizer, {.encode = {.write = false}});
    std::vector<int64_t> begins = {0};
    source->document_begins(0, source->size(), begins);
    ASSERT_EQ(begins.size(), records.size()) << name;
    begins.push_back(source->size());
    for (size_t i = 0; i < records.size(); ++i) {
        const auto& [prompt, completion] = records[i];
        std::vector<int32_t> ids(to_size(begins[i + 1] - begins[i])), expected = tokenizer.prefix();
        std::vector<uint8_t> loss_mask(ids.size());
        source->read(begins[i], ids);
        source->read_mask(begins[i], loss_mask);
        for (const auto& more : {tokenizer.encode(prompt + completion), tokenizer.suffix()})
            expected.insert(expected.end(), more.begin(), more.end());
        ASSERT_EQ(ids, expected) << name << ": " << prompt << "|" << completion;
        // The mask is a beginning, and it shows a beginning of the prompt.
        const auto masked = to_size(std::ranges::count(loss_mask, 0));
        EXPECT_TRUE(std::all_of(loss_mask.begin(), loss_mask.begin() + static_cast<std::ptrdiff_t>(masked),
                                [](uint8_t c) { return c == 0; }));
        const auto shown = [&](std::vector<int32_t> of) { return tokenizer.decode(of); };
        std::vector<int32_t> of_prompt = tokenizer.prefix();
        for (const int32_t id : tokenizer.encode(prompt)) of_prompt.push_back(id);
        const std::string before = shown({ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(masked)});
        EXPECT_TRUE(shown(of_prompt).starts_with(before)) << name << ": " << before << " of " << prompt;
        // Nothing of the prompt counts but in a token that reaches beyond it.
        if (masked + tokenizer.suffix().size() < ids.size()) {
            const auto end = ids.begin() + static_cast<std::ptrdiff_t>(masked) + 1;
            EXPECT_GT(shown({ids.begin(), end}).size(), before.size());
            const std::string next = shown({ids.begin(), end});
            EXPECT_FALSE(shown(of_prompt).starts_with(next)) << name << ": " << next << " of " << prompt;
        }
    }
}

TEST(RecordIds, AreThoseOfTheWholeText) {
    const ScratchFolder folder;
    Json with_prefix = Json::parse(read_file(of_testdata("gpt2.json")));
    with_prefix["pre_tokenizer"]["add_prefix_space"] = true;
    std::vector<std::string> tokenizers = {"bytes", folder.write("prefix.json", with_prefix.dump())};
    for (const char* name : {"gpt2.json", "llama3.json", "qwen.json", "qwen35.json"})
        tokenizers.push_back(of_testdata(name));
    if (!text::sentencepiece_version().empty()) {
        tokenizers.push_back(of_testdata("sentencepiece.model"));
        std::filesystem::create_directory(folder.path("chat"));
        std::filesystem::copy(of_testdata("sentencepiece.model"), folder.path("chat/tokenizer.model"));
        folder.write("chat/added_tokens.json", R"({"<|endoftext|>": 450})");
        folder.write("chat/tokenizer_config.json",
                     R"({"tokenizer_class": "LlamaTokenizer", "add_bos_token": true, "add_eos_token": true,
                         "bos_token": "<s>", "eos_token": "</s>"})");
        tokenizers.push_back(folder.path("chat"));
    }
    for (const std::string& name : tokenizers) expect_ids_of_whole_texts(*text::make_tokenizer(name), name);
}

// What transformers and the library decode: no space that the record does not have.
TEST(RecordIds, AnAnswerHasNoSpaceOfItsOwn) {
    if (text::sentencepiece_version().empty()) GTEST_SKIP() << "this build reads no sentencepiece models";
    const ScratchFolder folder;
    const auto path = folder.write("r.jsonl", R"({"prompt": "2+2=", "completion": "4"})");
    const auto tokenizer = text::make_tokenizer(of_testdata("sentencepiece.model"));
    const auto source = open_records({path}, *tokenizer, {.encode = {.write = false}});
    std::vector<int32_t> ids(to_size(source->size()));
    source->read(0, ids);
    EXPECT_EQ(tokenizer->decode(ids), "2+2=4");
}

}  // namespace
}  // namespace tutti::data
