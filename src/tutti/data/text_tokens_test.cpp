// data/text_tokens_test.cpp: the ids of a text are kept beside it, found again, and never wrong.
#include "tutti/data/text_tokens.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tutti/data/data_set.h"
#include "tutti/data/testing/token_files.h"
#include "tutti/data/tokenizers/bpe_trainer.h"
#include "tutti/data/tokenizers/tokenizer_json.h"

namespace tutti::data {
namespace {

constexpr std::string_view kText = "the cat and the hat, the rat and the mat\n";

ByteLevelModel small_model(int64_t vocab) {
    const std::vector<std::string_view> texts = {kText};
    return train_bpe(texts, {.vocab = vocab, .min_frequency = 1});
}

std::vector<int32_t> all_of(const TokenSource& source) {
    std::vector<int32_t> ids(static_cast<size_t>(source.size()));
    source.read(0, ids);
    return ids;
}

std::vector<std::string> caches_in(const ScratchFolder& folder) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path("")))
        if (entry.path().extension() != ".txt" && entry.path().extension() != ".json") names.push_back(entry.path());
    return names;
}

TEST(TextTokens, AreWrittenOnceAndFoundAgain) {
    const ScratchFolder folder;
    const ByteLevelTokenizer tokenizer(small_model(270), "t");
    const auto text = folder.write("a.txt", kText);
    int encoded = 0;
    const EncodeOptions options{.progress = [&](const EncodeProgress& p) {
        ++encoded;
        EXPECT_EQ(p.bytes, p.bytes_total);
        EXPECT_EQ(p.bytes_total, static_cast<int64_t>(kText.size()));
    }};
    for (int i = 0; i < 2; ++i) {
        const auto source = open_text({text}, tokenizer, options);
        EXPECT_EQ(all_of(*source), tokenizer.encode(kText));
        EXPECT_EQ(source->format(), "llmc-u16");
        EXPECT_EQ(caches_in(folder).size(), 1u);
        EXPECT_EQ(encoded, 1);
    }
    // Another text or another tokenizer is another file.
    folder.write("a.txt", "the other text\n");
    EXPECT_EQ(all_of(*open_text({text}, tokenizer, {})), tokenizer.encode("the other text\n"));
    EXPECT_EQ(caches_in(folder).size(), 2u);
    const ByteLevelTokenizer other(small_model(265), "t");
    EXPECT_EQ(all_of(*open_text({text}, other, {})), other.encode("the other text\n"));
    EXPECT_EQ(caches_in(folder).size(), 3u);
}

TEST(TextTokens, SeveralTextsAreOneRow) {
    const ScratchFolder folder;
    const ByteLevelTokenizer tokenizer(small_model(270), "t");
    const std::vector<std::string> paths = {folder.write("a.txt", "the c"), folder.write("b.txt", "at the")};
    auto expected = tokenizer.encode("the c");  // no word goes over the end of a file
    const auto second = tokenizer.encode("at the");
    expected.insert(expected.end(), second.begin(), second.end());
    for (const bool write : {false, true}) {
        EXPECT_EQ(all_of(*open_text(paths, tokenizer, {.write = write})), expected);
        EXPECT_EQ(caches_in(folder).size(), write ? 2u : 0u);
    }
}

TEST(TextTokens, WideIdsOfALargeVocabulary) {
    const ScratchFolder folder;
    ByteLevelModel model = small_model(270);
    const auto last = static_cast<int32_t>(model.tokens.size());
    for (int32_t id = last; id <= 65536; ++id) model.added.push_back({.id = id, .content = concat("<", id, ">")});
    const ByteLevelTokenizer tokenizer(std::move(model), "t");
    ASSERT_EQ(tokenizer.vocab(), 65537);
    const auto source = open_text({folder.write("a.txt", "the <65536> cat")}, tokenizer, {});
    EXPECT_EQ(source->format(), "llmc-u32");
    EXPECT_EQ(all_of(*source), tokenizer.encode("the <65536> cat"));
}

TEST(TextTokens, AFolderThatCannotBeWritten) {
    const ByteLevelTokenizer tokenizer(small_model(270), "t");
    const ScratchFolder folder;
    const auto text = folder.write(std::string(250, 'a'), kText);  // the name with its digits is too long for a file
    EXPECT_EQ(missing("put the text into a folder that can be written",
                      message_of<UsageError>([&] { open_text({text}, tokenizer, {}); })),
              "");
    EXPECT_EQ(open_text({text}, tokenizer, {.write = false})->size(),
              static_cast<int64_t>(tokenizer.encode(kText).size()));
}

TEST(TextTokens, TheVocabularyMustFitTheModel) {
    const ScratchFolder folder;
    spec::DataSpec data;
    data.train = {folder.write("a.txt", std::string(kText) + std::string(kText))};
    data.tokenizer = folder.write("tokenizer.json", tokenizer_json(small_model(270)));
    const ByteLevelTokenizer tokenizer(small_model(270), "t");
    EXPECT_EQ(missing("makes ids up to 269, model.vocab is 269; set model.vocab = 270 or more",
                      message_of<UsageError>([&] { open(data, 269, 4); })),
              "");
    for (const int64_t vocab : {int64_t{270}, int64_t{320}}) {  // padded: fine
        const DataSet set = open(data, vocab, 4);
        EXPECT_EQ(set.train.size(), static_cast<int64_t>(tokenizer.encode(kText).size()) * 2);
        EXPECT_EQ(set.tokenizer->vocab(), 270);
    }
}

}  // namespace
}  // namespace tutti::data
