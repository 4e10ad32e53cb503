// data/tokenizers/byte_level.h: the byte-level BPE tokenizer of GPT-2, Llama 3 and Qwen: added tokens are taken out of
// the text, what is left is normalized, cut into words, and each word is merged.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/data/tokenizer.h"
#include "tutti/data/tokenizers/bpe.h"
#include "tutti/data/tokenizers/nfc.h"
#include "tutti/data/tokenizers/splitter.h"
#include "tutti/data/tokenizers/unicode.h"

namespace tutti::data {

// The fields of "added_tokens" in tokenizer.json.
struct AddedToken {
    int32_t id = 0;
    std::string content;
    bool single_word = false;  // only where no word character stands beside it
    bool lstrip = false;       // takes the white space before it along
    bool rstrip = false;       // and that after it
    bool normalized = false;   // looked for in the normalized text
    bool special = false;      // decoding may leave it out
};

// Tokens that are found in the text before it is cut into words, such as <|endoftext|>. Leftmost first, at one place
// the longest, as the `tokenizers` package does.
class AddedTokens {
  public:
    AddedTokens(std::vector<AddedToken> tokens, std::shared_ptr<const CharacterClasses> classes);

    bool empty() const { return tokens_.empty(); }

    // Calls between(text) for what is no added token, and found(id) for each that is, from left to right.
    template <class Between, class Found>
    void split(std::string_view text, const Between& between, const Found& found) const {
        size_t done = 0;
        for (size_t from = 0; from < text.size();) {
            Match match;
            if (!next(text, from, done, match)) break;
            if (done < match.begin) between(text.substr(done, match.begin - done));
            found(match.id);
            done = match.end;
            from = match.search_from;
        }
        if (done < text.size()) between(text.substr(done));
    }

    // Whether a token may contain white space or take it from its neighbours: text cannot be cut there then.
    bool touch_space() const;

  private:
    struct Node {
        std::vector<std::pair<unsigned char, int32_t>> children;  // few: a list is as fast as a map
        int32_t token = -1;                                       // index into tokens_
    };
    struct Match {
        size_t begin, end;   // with stripped white space
        size_t search_from;  // where the content ends: the next search begins here
        int32_t id;
    };
    bool next(std::string_view text, size_t from, size_t done, Match& match) const;

    std::vector<AddedToken> tokens_;
    std::shared_ptr<const CharacterClasses> classes_;
    std::vector<Node> nodes_;
    std::vector<int32_t> roots_;  // by first byte; -1: no token begins so
};

// What a tokenizer.json says, as plain data.
struct ByteLevelModel {
    std::vector<std::optional<std::string>> tokens;  // bytes of each id of the model
    std::vector<Merge> merges;                       // in order of rank
    bool ignore_merges = false;
    SplitKind split = SplitKind::gpt2;
    bool add_prefix_space = false;  // before each piece of text that does not begin with one
    bool nfc = false;
    std::vector<AddedToken> added;
    std::vector<int32_t> prefix, suffix;  // of the post-processor
    SpecialIds special;
};

class ByteLevelTokenizer final : public Tokenizer {
  public:
    // `source` is the file that it comes from.
    ByteLevelTokenizer(ByteLevelModel model, std::string source);

    int64_t vocab() const override { return vocab_; }
    std::unique_ptr<Encoder> make_encoder() const override;
    std::string decode(std::span<const int32_t> ids, ShowSpecial special) const override;
    std::optional<int32_t> id_of(std::string_view token) const override;
    SpecialIds special() const override { return special_; }
    std::vector<int32_t> prefix() const override { return prefix_; }
    std::vector<int32_t> suffix() const override { return suffix_; }
    size_t safe_cut(std::string_view text, size_t from) const override;
    uint64_t fingerprint() const override { return fingerprint_; }
    std::string file() const override { return source_; }
    std::string description() const override;

  private:
    friend class ByteLevelEncoder;
    ByteLevelTokenizer(ByteLevelModel model, std::string source,
                       const std::shared_ptr<const CharacterClasses>& classes);

    std::string source_;
    Bpe bpe_;
    Splitter splitter_;
    std::optional<Nfc> nfc_;
    AddedTokens raw_added_, normalized_added_;
    std::vector<std::optional<std::string>> texts_;  // by id, for decoding
    std::vector<bool> is_special_;                   // by id
    std::unordered_map<std::string_view, int32_t> added_ids_;
    bool add_prefix_space_, can_cut_;
    std::vector<int32_t> prefix_, suffix_;
    SpecialIds special_;
    int64_t vocab_;
    uint64_t fingerprint_;
};

// The printable code point that stands for each byte in tokenizer.json: 33-126, 161-172 and 174-255 for themselves, the
// other 68 in increasing order as 256, 257, ... (GPT-2's encoder.py).
std::array<uint32_t, 256> byte_characters();

// The bytes that a token of the file stands for; nothing when a character stands for no byte.
std::optional<std::string> bytes_of_token(std::string_view token);
std::string token_of_bytes(std::string_view bytes);

}  // namespace tutti::data
