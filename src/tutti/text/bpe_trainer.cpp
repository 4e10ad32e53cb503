#include "tutti/text/bpe_trainer.h"

#include <algorithm>
#include <queue>
#include <unordered_map>
#include <unordered_set>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/text/flat_map.h"
#include "tutti/text/parallel.h"

namespace tutti::text {

namespace {

struct HashText {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
using WordCounts = std::unordered_map<std::string, int64_t, HashText, std::equal_to<>>;

// --- words -----------------------------------------------------------------------------------------------------------

// The texts between special tokens, in pieces that threads can share: words end at their ends.
std::vector<std::string_view> pieces_of(std::span<const std::string_view> texts, const AddedTokens& special,
                                        const Splitter& splitter) {
    constexpr size_t kPiece = 256 << 10;
    std::vector<std::string_view> pieces;
    const auto cut = [&](std::string_view text) {
        while (!text.empty()) {
            size_t end = std::min(kPiece, text.size());
            while (end < text.size() && !splitter.is_cut(text, end)) ++end;
            pieces.push_back(text.substr(0, end));
            text.remove_prefix(end);
        }
    };
    for (const std::string_view text : texts) special.split(text, cut, [](int32_t) {});
    return pieces;
}

WordCounts count_words(std::span<const std::string_view> texts, const BpeTraining& training,
                       const std::vector<AddedToken>& special) {
    const auto classes = std::make_shared<const CharacterClasses>();
    const Splitter splitter(training.split, classes);
    const std::optional<Nfc> nfc = uses_nfc(training.split) ? std::optional<Nfc>(std::in_place) : std::nullopt;
    const auto pieces = pieces_of(texts, AddedTokens(special, classes), splitter);
    std::vector<WordCounts> parts(to_size(threads_for(training.threads, pieces.size())));
    for_each_parallel(pieces.size(), training.threads, [&](size_t thread) {
        return [&, counts = &parts[thread], buffer = std::string()](size_t i) mutable {
            const std::string_view text = nfc ? nfc->normalize(pieces[i], buffer) : pieces[i];
            for (size_t at = 0; at < text.size();) {
                const size_t end = splitter.word_end(text, at);
                const std::string_view word = text.substr(at, end - at);
                const auto found = counts->find(word);
                found != counts->end() ? ++found->second : counts->emplace(word, 1).first->second;
                at = end;
            }
        };
    });
    WordCounts all = std::move(parts[0]);
    for (size_t p = 1; p < parts.size(); ++p)
        for (const auto& [word, count] : parts[p]) all[word] += count;
    return all;
}

// --- merges ----------------------------------------------------------------------------------------------------------

constexpr uint64_t key_of(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

class Learner {
  public:
    Learner(const WordCounts& counts, const std::vector<int32_t>& byte_ids) {
        for (const auto& [text, count] : counts) {
            Word word{count, {}};
            for (const char c : text) word.symbols.push_back(byte_ids[static_cast<unsigned char>(c)]);
            words_.push_back(std::move(word));
        }
        for (size_t w = 0; w < words_.size(); ++w)
            for (size_t i = 0; i + 1 < words_[w].symbols.size(); ++i) add(w, i, words_[w].count);
        pairs_.for_each([&](uint64_t key, const Pair& pair) { queue_.push({pair.count, key}); });
    }

    // The most frequent pair; of equally frequent ones, the one with the lower ids. Its count is 0 when no pair is
    // left.
    struct Best {
        int64_t count = 0;
        int32_t left = 0, right = 0;
    };
    Best best() {
        while (!queue_.empty()) {
            const Candidate top = queue_.top();
            const int64_t count = pairs_.find(top.key)->count;
            if (count == top.count && count > 0)
                return {count, static_cast<int32_t>(top.key >> 32), static_cast<int32_t>(top.key & 0xffffffff)};
            queue_.pop();  // its count fell since
            if (count > 0) queue_.push({count, top.key});
        }
        return {};
    }

    void merge(int32_t left, int32_t right, int32_t joined) {
        Pair merged = std::move(pairs_[key_of(left, right)]);
        pairs_[key_of(left, right)] = {};
        grown_.clear();
        for (const uint32_t w : merged.words) merge_in(w, left, right, joined);
        pairs_[key_of(left, right)].count = 0;  // "aaa" has (a, a) twice, and one merge removes both
        std::sort(grown_.begin(), grown_.end());
        grown_.erase(std::unique(grown_.begin(), grown_.end()), grown_.end());
        for (const uint64_t key : grown_)
            if (const int64_t count = pairs_.find(key)->count; count > 0) queue_.push({count, key});
    }

  private:
    struct Word {
        int64_t count;
        std::vector<int32_t> symbols;
    };
    struct Pair {
        int64_t count = 0;
        std::vector<uint32_t> words;  // that contain the pair, or did
    };
    struct Candidate {
        int64_t count;
        uint64_t key;
        bool operator<(const Candidate& other) const {
            return count != other.count ? count < other.count : key > other.key;
        }
    };

    // Changes the count of the pair at symbols i and i + 1 of word w.
    void add(size_t w, size_t i, int64_t change) {
        const std::vector<int32_t>& symbols = words_[w].symbols;
        const uint64_t key = key_of(symbols[i], symbols[i + 1]);
        Pair& pair = pairs_[key];
        pair.count += change;
        if (change < 0) return;
        if (pair.words.empty() || pair.words.back() != w) pair.words.push_back(static_cast<uint32_t>(w));
        grown_.push_back(key);
    }

    void merge_in(size_t w, int32_t left, int32_t right, int32_t joined) {
        std::vector<int32_t>& symbols = words_[w].symbols;
        const int64_t count = words_[w].count;
        // Counts lose the pairs around a merge as they were before it and gain the pairs as they are after it.
        for (size_t i = 0; i + 1 < symbols.size(); ++i) {
            if (symbols[i] != left || symbols[i + 1] != right) continue;
            if (i > 0) add(w, i - 1, -count);
            if (i + 2 < symbols.size()) add(w, i + 1, -count);
            symbols[i] = joined;
            symbols.erase(symbols.begin() + static_cast<int64_t>(i) + 1);
            if (i > 0) add(w, i - 1, count);
            if (i + 1 < symbols.size()) add(w, i, count);
        }
    }

    std::vector<Word> words_;
    FlatMap<Pair> pairs_;
    std::priority_queue<Candidate> queue_;
    std::vector<uint64_t> grown_;  // pairs that the current merge made more frequent
};

std::vector<AddedToken> special_tokens(const BpeTraining& training) {
    std::vector<AddedToken> tokens;
    std::unordered_set<std::string> seen;
    for (const std::string& content : training.special) {
        const auto bytes = bytes_of_token(content);
        check<UsageError>(!content.empty() && !(bytes && bytes->size() == 1), "--special \"", content,
                          "\": required: a text that no single byte stands for, such as <|endoftext|>");
        check<UsageError>(seen.insert(content).second, "--special ", content, ": is given twice");
        tokens.push_back({.id = static_cast<int32_t>(tokens.size()), .content = content, .special = true});
    }
    const auto least = static_cast<int64_t>(tokens.size()) + 256;
    check<UsageError>(training.vocab >= least, "--vocab ", training.vocab, ": required: at least ", least,
                      ", for 256 bytes and ", tokens.size(), " special tokens");
    return tokens;
}

}  // namespace

ByteLevelModel train_bpe(std::span<const std::string_view> texts, const BpeTraining& training) {
    ByteLevelModel model;
    model.split = training.split;
    model.nfc = uses_nfc(training.split);
    model.added = special_tokens(training);
    model.tokens.resize(model.added.size());

    // Bytes in the order of their characters in GPT-2's vocabulary.
    const auto characters = byte_characters();
    std::vector<int32_t> order(256), byte_ids(256);
    for (int32_t byte = 0; byte < 256; ++byte) order[to_size(byte)] = byte;
    std::sort(order.begin(), order.end(),
              [&](int32_t a, int32_t b) { return characters[to_size(a)] < characters[to_size(b)]; });
    std::unordered_map<std::string, int32_t> ids;
    const auto add_token = [&](const std::string& bytes) {
        const auto [place, is_new] = ids.emplace(bytes, static_cast<int32_t>(model.tokens.size()));
        if (is_new) model.tokens.emplace_back(bytes);
        return place->second;
    };
    for (const int32_t byte : order)
        byte_ids[to_size(byte)] = add_token(std::string(1, static_cast<char>(static_cast<unsigned char>(byte))));

    training.status("counting words");
    const WordCounts counts = count_words(texts, training, model.added);
    training.status(concat(counts.size(), " different words"));
    Learner learner(counts, byte_ids);
    while (static_cast<int64_t>(model.tokens.size()) < training.vocab) {
        const auto [count, left, right] = learner.best();
        if (count < std::max<int64_t>(1, training.min_frequency)) break;
        // Another pair may already have made a token of the same bytes; then both merges make that token.
        const int32_t joined = add_token(*model.tokens[to_size(left)] + *model.tokens[to_size(right)]);
        model.merges.push_back({left, right, joined});
        learner.merge(left, right, joined);
        if (model.merges.size() % 256 == 0)
            training.status(concat(model.tokens.size(), " of ", training.vocab, " tokens"));
    }
    return model;
}

}  // namespace tutti::text
