// text/bpe.h: byte pair encoding of one word: the adjacent pair of lowest rank is merged, leftmost first,
// until no pair has a rank (Sennrich et al., arXiv:1508.07909).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tutti/base/to_size.h"
#include "tutti/text/flat_map.h"

namespace tutti::text {

struct Merge {
    int32_t left, right, joined;  // ids
    bool operator==(const Merge&) const = default;
};

class Bpe {
  public:
    // `tokens`: bytes of each id, none for ids that are no tokens of the model. `merges` in order of rank; of equal
    // pairs the last counts. With `whole_words_first` a word that is a token becomes that token without merging.
    Bpe(std::vector<std::optional<std::string>> tokens, const std::vector<Merge>& merges, bool whole_words_first);

    int32_t size() const { return static_cast<int32_t>(tokens_.size()); }
    const std::optional<std::string>& token(int32_t id) const { return tokens_[to_size(id)]; }
    std::optional<int32_t> id_of(std::string_view bytes) const;

    // Appends the ids of the word. DataError for a byte without a token.
    void encode(std::string_view word, std::vector<int32_t>& ids) const;

  private:
    static constexpr uint32_t kNoRank = ~0u;
    uint32_t rank_of(int32_t left, int32_t right) const {
        const uint32_t* rank = ranks_.find(uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right));
        return rank == nullptr ? kNoRank : *rank;
    }
    void merge_short(std::string_view word, std::vector<int32_t>& ids) const;
    void merge_long(std::string_view word, std::vector<int32_t>& ids) const;
    int32_t byte_id(char byte) const;

    std::vector<std::optional<std::string>> tokens_;
    std::unordered_map<std::string_view, int32_t> ids_;  // views of tokens_
    std::array<int32_t, 256> byte_ids_;                  // -1: none
    FlatMap<uint32_t> ranks_;                            // left << 32 | right -> rank
    std::vector<int32_t> joined_;                        // by rank
    bool whole_words_first_;
};

// The ids of words, since nearly all words of a text were seen before. For one thread.
class WordCache {
  public:
    WordCache() : entries_(new Entry[kEntries]()) {}

    // Appends the ids of the word; encode(word, ids) appends them where they are not known.
    template <class Encode>
    void encode(std::string_view word, std::vector<int32_t>& ids, const Encode& encode) {
        if (word.size() > kLongestWord) return encode(word, ids);
        Entry& entry = entries_[entry_of(word)];
        if (entry.length == word.size() && std::memcmp(entry.word, word.data(), word.size()) == 0) {
            ids.insert(ids.end(), entry.ids, entry.ids + entry.count);
            return;
        }
        const size_t before = ids.size();
        encode(word, ids);
        const size_t count = ids.size() - before;
        if (count > kMostIds) return;
        entry.length = static_cast<uint8_t>(word.size());
        entry.count = static_cast<uint8_t>(count);
        std::memcpy(entry.word, word.data(), word.size());
        std::copy(ids.begin() + static_cast<int64_t>(before), ids.end(), entry.ids);
    }

  private:
    // One cache line. Longer words and words of more ids are rare and merged each time. 32768 entries hold the words of
    // a book; a colliding word replaces the earlier one.
    static constexpr size_t kLongestWord = 30, kMostIds = 8, kEntries = 1 << 15;
    struct alignas(64) Entry {
        uint8_t length = 0, count = 0;
        char word[kLongestWord];
        int32_t ids[kMostIds];
    };
    static_assert(sizeof(Entry) == 64);

    static size_t entry_of(std::string_view word);

    std::unique_ptr<Entry[]> entries_;
};

class CachedBpe {
  public:
    explicit CachedBpe(const Bpe& bpe) : bpe_(bpe) {}
    void encode(std::string_view word, std::vector<int32_t>& ids) {
        words_.encode(word, ids,
                      [this](std::string_view unknown, std::vector<int32_t>& out) { bpe_.encode(unknown, out); });
    }

  private:
    const Bpe& bpe_;
    WordCache words_;
};

}  // namespace tutti::text
