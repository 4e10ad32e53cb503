// text/byte_level_test.cpp: ids against vectors that the `tokenizers` package made (testdata/, by
// tests/peer/make_tokenizer_vectors.py), and what must hold for any bytes at all.
#include "tutti/text/byte_level.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "tutti/base/json.h"
#include "tutti/base/read_file.h"
#include "tutti/base/testing/scratch.h"
#include "tutti/base/to_size.h"

namespace tutti::text {
namespace {

const char* const kKinds[] = {"gpt2", "llama3", "qwen", "qwen35"};

std::string testdata(const std::string& name) {
    return (std::filesystem::path(__FILE__).parent_path() / "testdata" / name).string();
}

// Bytes of every kind, more of those that the rules treat specially.
std::string random_bytes(std::mt19937& random, size_t size) {
    const std::string_view likely = "aAsSl  '\n\r\t<|>1\xCC\x81\xE3\x80\x80\xC2\xA0";
    std::string text;
    while (text.size() < size)
        text += random() % 4 == 0 ? static_cast<char>(random()) : likely[random() % likely.size()];
    return text;
}

TEST(ByteLevel, IdsOfTheTokenizersPackage) {
    const auto vectors = Json::parse(read_file(testdata("vectors.json")));
    for (const char* kind : kKinds) {
        const auto tokenizer = make_tokenizer(testdata(std::string(kind) + ".json"));
        int texts = 0;
        for (const auto& vector : vectors.at(kind)) {
            const std::string text = vector.at("text").text();
            EXPECT_EQ(tokenizer->encode(text), vector.at("ids").get<std::vector<int32_t>>()) << kind << ": " << text;
            ++texts;
        }
        ASSERT_EQ(texts, 28);
    }
}

TEST(ByteLevel, AnyBytesComeBack) {
    std::mt19937 random(1);
    for (const char* kind : {"gpt2", "llama3"}) {
        const auto tokenizer = make_tokenizer(testdata(std::string(kind) + ".json"));
        for (int i = 0; i < 200; ++i) {
            const std::string text = random_bytes(random, random() % 300);
            EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
        }
    }
}

TEST(ByteLevel, CutsChangeNoId) {
    std::mt19937 random(2);
    for (const char* kind : kKinds) {
        ByteLevelModel model;
        for (int byte = 0; byte < 256; ++byte) model.tokens.emplace_back(std::string(1, static_cast<char>(byte)));
        model.split = *split_kind_named(kind);
        model.nfc = uses_nfc(model.split);
        for (const bool prefix_space : {false, model.split == SplitKind::gpt2}) {
            model.add_prefix_space = prefix_space;
            // With merges of all pairs each word becomes one token, so every boundary shows.
            ByteLevelModel joining = model;
            for (const char* pair : {"  ", "\n\n", "\r\n", " a", "a\n", "\n ", " \n", "'s", "\xCC\x81", "a\xCC"}) {
                joining.tokens.emplace_back(pair);
                joining.merges.push_back({static_cast<unsigned char>(pair[0]), static_cast<unsigned char>(pair[1]),
                                          static_cast<int32_t>(joining.tokens.size()) - 1});
            }
            const ByteLevelTokenizer tokenizer(joining, "test");
            // One for all: the 2 MiB that each makes for its words are most of the time under the thread sanitizer.
            const auto encoder = tokenizer.make_encoder();
            const auto encode = [&](std::string_view text) {
                std::vector<int32_t> ids;
                encoder->encode(text, ids);
                return ids;
            };
            int cuts = 0;
            for (int i = 0; i < 400; ++i) {
                const std::string text = random_bytes(random, 40);
                const auto whole = encode(text);
                for (size_t cut = tokenizer.safe_cut(text, 1); cut < text.size();
                     cut = tokenizer.safe_cut(text, cut + 1)) {
                    auto ids = encode(text.substr(0, cut));
                    const auto rest = encode(text.substr(cut));
                    ids.insert(ids.end(), rest.begin(), rest.end());
                    ASSERT_EQ(ids, whole) << kind << " cut at " << cut << " of " << ::testing::PrintToString(text);
                    ++cuts;
                }
            }
            EXPECT_GT(cuts, 100);
        }
    }
}

TEST(ByteLevel, LongTextsAreCutAndJoined) {
    const auto tokenizer = make_tokenizer(testdata("qwen.json"));
    std::mt19937 random(3);
    const std::string text = random_bytes(random, 1 << 20);
    const auto whole = tokenizer->encode(text);
    EXPECT_EQ(encode_text(*tokenizer, text, 2), whole);
}

TEST(ByteLevel, SpecialTokensAreShownOrNot) {
    const auto tokenizer = make_tokenizer(testdata("llama3.json"));
    const auto ids = tokenizer->encode("a<|endoftext|>b");
    EXPECT_EQ(ids[1], tokenizer->id_of("<|endoftext|>"));
    EXPECT_EQ(tokenizer->decode(ids), "a<|endoftext|>b");
    EXPECT_EQ(tokenizer->decode(ids, ShowSpecial::no), "ab");
    EXPECT_EQ(tokenizer->id_of("no such token"), std::nullopt);
    EXPECT_EQ(tokenizer->prefix(), std::vector<int32_t>{1});  // TemplateProcessing of the file
    EXPECT_EQ(tokenizer->suffix(), std::vector<int32_t>{0});
    const std::vector<int32_t> wrong = {65, 100000};
    EXPECT_EQ(
        missing("id 100000 at position 1 is not a token", message_of<DataError>([&] { tokenizer->decode(wrong); })),
        "");
}

// formats.md, B2.6 of the reference; GPT-2's encoder.py.
TEST(ByteLevel, ByteCharacters) {
    const auto characters = byte_characters();
    EXPECT_EQ(characters[' '], 0x120u);
    EXPECT_EQ(characters['\n'], 0x10Au);
    EXPECT_EQ(characters['\t'], 0x109u);
    EXPECT_EQ(characters[0x7F], 0x121u);
    EXPECT_EQ(characters[0xAD], 0x143u);
    EXPECT_EQ(characters['!'], 0x21u);
    EXPECT_EQ(characters[0xFF], 0xFFu);
    std::string all;
    for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
    EXPECT_EQ(bytes_of_token(token_of_bytes(all)), all);
    EXPECT_EQ(token_of_bytes(" hello\n"), "\u0120hello\u010A");
    EXPECT_EQ(bytes_of_token("a b"), std::nullopt);  // a blank stands for no byte
}

// Bpe::encode against the definition, written without any table of ranks; long words take another path there.
TEST(Bpe, MergesAreTheDefinition) {
    std::mt19937 random(4);
    for (int round = 0; round < 60; ++round) {
        std::vector<std::optional<std::string>> tokens(256);
        for (size_t byte = 0; byte < 256; ++byte) tokens[byte] = std::string(1, static_cast<char>(byte));
        std::vector<Merge> merges;
        const auto pick = [&] {
            const bool learnt = tokens.size() > 256 && random() % 2 == 0;
            return static_cast<int32_t>(learnt ? 256 + random() % (tokens.size() - 256) : 'a' + random() % 3);
        };
        while (merges.size() < 20) {
            const int32_t left = pick(), right = pick();
            const std::string joined = *tokens[to_size(left)] + *tokens[to_size(right)];
            if (joined.size() > 9 || std::find(tokens.begin(), tokens.end(), joined) != tokens.end()) continue;
            tokens.emplace_back(joined);
            merges.push_back({left, right, static_cast<int32_t>(tokens.size()) - 1});
        }
        const Bpe bpe(tokens, merges, false);
        CachedBpe cached(bpe);
        for (const size_t size : {1u, 2u, 5u, 29u, 30u, 31u, 63u, 64u, 65u, 300u}) {
            std::string word;
            while (word.size() < size) word += static_cast<char>('a' + random() % 3);
            std::vector<int32_t> expected(word.begin(), word.end());
            for (bool merged = true; merged;) {
                merged = false;
                for (const Merge& m : merges) {
                    for (size_t i = 0; i + 1 < expected.size() && !merged; ++i) {
                        if (expected[i] != m.left || expected[i + 1] != m.right) continue;
                        expected[i] = m.joined;
                        expected.erase(expected.begin() + static_cast<int64_t>(i) + 1);
                        merged = true;
                    }
                    if (merged) break;
                }
            }
            std::vector<int32_t> ids, again;
            bpe.encode(word, ids);
            EXPECT_EQ(ids, expected) << word;
            for (int i = 0; i < 2; ++i) cached.encode(word, again);
            ids.insert(ids.end(), expected.begin(), expected.end());
            EXPECT_EQ(again, ids) << word;
        }
    }
}

TEST(Bpe, AByteWithoutATokenIsAnError) {
    const Bpe bpe({"a", "b"}, {}, false);
    std::vector<int32_t> ids;
    EXPECT_EQ(missing("has no token for byte 99", message_of<DataError>([&] { bpe.encode("abc", ids); })), "");
}

}  // namespace
}  // namespace tutti::text
