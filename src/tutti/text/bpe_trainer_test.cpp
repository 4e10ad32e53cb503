// text/bpe_trainer_test.cpp: learnt merges against the definition, in which all pairs are counted anew
// before each merge.
#include "tutti/text/bpe_trainer.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "tutti/base/testing/scratch.h"

namespace tutti::text {
namespace {

// Words of few letters, so that several pairs make the same token and ties are frequent.
std::string words(size_t count) {
    std::mt19937 random(5);
    std::string text;
    for (size_t i = 0; i < count; ++i) {
        text += ' ';
        for (size_t n = 1 + random() % 8; n > 0; --n) text += static_cast<char>('a' + random() % 3);
    }
    return text;
}

std::vector<Merge> by_definition(const std::string& text, const ByteLevelModel& model, size_t merges, int64_t least) {
    std::map<std::string, int32_t> ids;
    for (size_t id = 0; id < 256; ++id) ids[*model.tokens[id]] = static_cast<int32_t>(id);
    auto next = static_cast<int32_t>(ids.size());
    std::map<std::string, int64_t> counts;
    for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find(' ', at + 1), text.size());
        ++counts[text.substr(at, end - at)];
        at = end;
    }
    std::vector<std::pair<std::vector<std::string>, int64_t>> parts;
    for (const auto& [word, count] : counts) {
        parts.push_back({{}, count});
        for (const char c : word) parts.back().first.emplace_back(1, c);
    }
    std::vector<Merge> learnt;
    while (learnt.size() < merges) {
        std::map<std::pair<int32_t, int32_t>, int64_t> pairs;
        for (const auto& [word, count] : parts)
            for (size_t i = 0; i + 1 < word.size(); ++i) pairs[{ids[word[i]], ids[word[i + 1]]}] += count;
        std::pair<int32_t, int32_t> best;
        int64_t most = 0;
        for (const auto& [pair, count] : pairs)  // ascending: the first of equals has the lower ids
            if (count > most) most = count, best = pair;
        if (most < least) break;
        for (auto& [word, count] : parts)
            for (size_t i = 0; i + 1 < word.size(); ++i)
                if (ids[word[i]] == best.first && ids[word[i + 1]] == best.second) {
                    word[i] += word[i + 1];
                    word.erase(word.begin() + static_cast<int64_t>(i) + 1);
                    if (ids.count(word[i]) == 0) ids[word[i]] = next++;
                }
        std::string left, right;
        for (const auto& [token, id] : ids) {
            if (id == best.first) left = token;
            if (id == best.second) right = token;
        }
        learnt.push_back({best.first, best.second, ids.at(left + right)});
    }
    return learnt;
}

TEST(BpeTrainer, LearnsByTheDefinition) {
    const std::string text = words(1500);
    const std::vector<std::string_view> texts = {text};
    for (const int64_t least : {1, 3}) {
        const ByteLevelModel model = train_bpe(texts, {.vocab = 256 + 120, .min_frequency = least});
        EXPECT_EQ(model.merges, by_definition(text, model, model.merges.size(), least));
        EXPECT_GT(model.merges.size(), 100u);
    }
}

TEST(BpeTrainer, StopsWhenNoPairIsFrequentEnough) {
    const std::vector<std::string_view> texts = {"ab ab ab cd"};
    const ByteLevelModel model = train_bpe(texts, {.vocab = 1000, .min_frequency = 2});
    // "ab" is there 3 times, " ab" twice, then nothing.
    ASSERT_EQ(model.merges.size(), 2u);
    EXPECT_EQ(model.tokens[256], "ab");
    EXPECT_EQ(model.tokens[257], " ab");
    EXPECT_EQ(model.tokens.size(), 258u);
}

TEST(BpeTrainer, ThreadsAndPartsChangeNothing) {
    std::string text;
    for (int i = 0; i < 40; ++i) text += words(2500) + "\n";  // about 600 kB: several pieces
    const std::vector<std::string_view> whole = {text};
    const size_t middle = text.find('\n', text.size() / 2) + 1;
    const std::vector<std::string_view> halves = {std::string_view(text).substr(0, middle),
                                                  std::string_view(text).substr(middle)};
    const auto one = train_bpe(whole, {.vocab = 400, .threads = 1});
    for (const SplitKind kind : {SplitKind::gpt2, SplitKind::qwen})
        EXPECT_EQ(train_bpe(whole, {.vocab = 400, .split = kind, .threads = 3}).merges,
                  train_bpe(halves, {.vocab = 400, .split = kind, .threads = 1}).merges);
    EXPECT_EQ(train_bpe(whole, {.vocab = 400, .threads = 2}).merges, one.merges);
}

TEST(BpeTrainer, TextIsCutAtSpecialTokens) {
    const std::vector<std::string_view> texts = {"xy<|end|>xy<|end|>xy<|end|>"};
    const ByteLevelModel model = train_bpe(texts, {.vocab = 600, .special = {"<|end|>"}});
    ASSERT_EQ(model.merges.size(), 1u);
    EXPECT_EQ(model.tokens.back(), "xy");
    EXPECT_EQ(model.added[0].id, 0);
    EXPECT_FALSE(model.tokens[0].has_value());
}

TEST(BpeTrainer, WrongRequests) {
    const std::vector<std::string_view> texts = {"text"};
    const auto refused = [&](const BpeTraining& training) {
        return message_of<UsageError>([&] { train_bpe(texts, training); });
    };
    EXPECT_EQ(missing("--vocab 257: required: at least 258, for 256 bytes and 2 special tokens",
                      refused({.vocab = 257, .special = {"<a>", "<b>"}})),
              "");
    EXPECT_EQ(missing("--special <a>: is given twice", refused({.special = {"<a>", "<a>"}})), "");
    EXPECT_EQ(missing("--special \"!\": required: a text that no single byte", refused({.special = {"!"}})), "");
}

}  // namespace
}  // namespace tutti::text
