#include "tutti/text/bpe.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <queue>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"

namespace tutti::text {

Bpe::Bpe(std::vector<std::optional<std::string>> tokens, const std::vector<Merge>& merges, bool whole_words_first)
    : tokens_(std::move(tokens)), ranks_(merges.size()), whole_words_first_(whole_words_first) {
    ids_.reserve(tokens_.size());
    byte_ids_.fill(-1);
    for (int32_t id = 0; id < size(); ++id) {
        const auto& token = tokens_[to_size(id)];
        if (!token) continue;
        ids_[*token] = id;
        if (token->size() == 1) byte_ids_[static_cast<unsigned char>((*token)[0])] = id;
    }
    joined_.reserve(merges.size());
    for (const Merge& merge : merges) {
        const uint64_t pair = uint64_t{static_cast<uint32_t>(merge.left)} << 32 | static_cast<uint32_t>(merge.right);
        ranks_[pair] = static_cast<uint32_t>(joined_.size());
        joined_.push_back(merge.joined);
    }
}

std::optional<int32_t> Bpe::id_of(std::string_view bytes) const {
    const auto found = ids_.find(bytes);
    if (found == ids_.end()) return std::nullopt;
    return found->second;
}

int32_t Bpe::byte_id(char c) const {
    const auto byte = static_cast<unsigned char>(c);
    check<DataError>(byte_ids_[byte] >= 0, "the tokenizer has no token for byte ", static_cast<int>(byte),
                     ", which is in the text; use a byte-level tokenizer with all 256 bytes");
    return byte_ids_[byte];
}

void Bpe::encode(std::string_view word, std::vector<int32_t>& ids) const {
    if (whole_words_first_) {
        const auto whole = ids_.find(word);
        if (whole != ids_.end()) return ids.push_back(whole->second);
    }
    // Below 64 bytes, looking through all ranks for each merge is faster than a heap.
    word.size() < 64 ? merge_short(word, ids) : merge_long(word, ids);
}

void Bpe::merge_short(std::string_view word, std::vector<int32_t>& ids) const {
    std::array<int32_t, 64> symbols;
    std::array<uint32_t, 64> ranks;  // of symbol i with symbol i + 1
    size_t n = word.size();
    for (size_t i = 0; i < n; ++i) symbols[i] = byte_id(word[i]);
    for (size_t i = 0; i + 1 < n; ++i) ranks[i] = rank_of(symbols[i], symbols[i + 1]);
    while (n > 1) {
        const size_t best = to_size(std::min_element(ranks.begin(), ranks.begin() + n - 1) - ranks.begin());
        if (ranks[best] == kNoRank) break;
        symbols[best] = joined_[ranks[best]];
        std::copy(symbols.begin() + best + 2, symbols.begin() + n, symbols.begin() + best + 1);
        if (best + 2 < n) std::copy(ranks.begin() + best + 1, ranks.begin() + n - 1, ranks.begin() + best);
        --n;
        if (best + 1 < n) ranks[best] = rank_of(symbols[best], symbols[best + 1]);
        if (best > 0) ranks[best - 1] = rank_of(symbols[best - 1], symbols[best]);
    }
    ids.insert(ids.end(), symbols.begin(), symbols.begin() + n);
}

// A heap of candidates and a linked list of symbols: n log n, so a megabyte without a space stays fast.
void Bpe::merge_long(std::string_view word, std::vector<int32_t>& ids) const {
    check<DataError>(word.size() < (size_t{1} << 31), "a word of ", word.size(),
                     " bytes without a place to cut; is this text? At most 2 GiB can be one word");
    struct Symbol {
        int32_t id;  // -1: merged into the symbol before
        int32_t previous, next;
    };
    const auto n = static_cast<int32_t>(word.size());
    std::vector<Symbol> symbols(word.size());
    for (int32_t i = 0; i < n; ++i) symbols[to_size(i)] = {byte_id(word[to_size(i)]), i - 1, i + 1 < n ? i + 1 : -1};
    const auto at = [&](int32_t i) -> Symbol& { return symbols[to_size(i)]; };
    std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> queue;  // rank << 32 | position
    const auto rank_at = [&](int32_t i) {
        return i < 0 || at(i).id < 0 || at(i).next < 0 ? kNoRank : rank_of(at(i).id, at(at(i).next).id);
    };
    const auto offer = [&](int32_t i) {
        if (const uint32_t rank = rank_at(i); rank != kNoRank)
            queue.push(uint64_t{rank} << 32 | static_cast<uint32_t>(i));
    };
    for (int32_t i = 0; i < n; ++i) offer(i);
    while (!queue.empty()) {
        const auto rank = static_cast<uint32_t>(queue.top() >> 32);
        const auto i = static_cast<int32_t>(queue.top() & 0xffffffff);
        queue.pop();
        if (rank_at(i) != rank) continue;  // stale: one of the pair was merged
        Symbol& left = at(i);
        Symbol& right = at(left.next);
        left.id = joined_[rank];
        left.next = right.next;
        right.id = -1;
        if (left.next >= 0) at(left.next).previous = i;
        offer(left.previous);
        offer(i);
    }
    for (int32_t i = 0; i >= 0; i = at(i).next) ids.push_back(at(i).id);
}

namespace {

uint64_t load(const char* bytes, size_t count) {
    uint64_t value = 0;
    std::memcpy(&value, bytes, count);
    return value;
}

uint64_t hash_of(std::string_view word) {
    const size_t n = word.size();
    uint64_t hash = n;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) hash = mixed(hash ^ load(word.data() + i, 8));
    return i < n ? mixed(hash ^ load(word.data() + i, n - i)) : hash;
}

}  // namespace

size_t WordCache::entry_of(std::string_view word) { return hash_of(word) % kEntries; }

}  // namespace tutti::text
