// text/byte_level.h: the byte-level BPE tokenizer of GPT-2, Llama 3 and Qwen. Added tokens are extracted from the text;
// the rest is normalized and split into words, and each word is merged (bpe.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/text/bpe.h"
#include "tutti/text/tokenizer.h"
#include "tutti/text/unicode.h"

namespace tutti::text {

// The regular expressions that split text into words: those of GPT-2, Llama 3, Qwen 2 and Qwen 3.5 (pattern_of()).
enum class SplitKind { gpt2, llama3, qwen, qwen35 };

std::string_view name_of(SplitKind kind);
std::optional<SplitKind> split_kind_named(std::string_view name);
std::string_view pattern_of(SplitKind kind);
bool uses_nfc(SplitKind kind);  // whether the tokenizers of this family normalize the text first
std::optional<SplitKind> split_kind_of_pattern(std::string_view pattern);

// Splits as the regular expression of `kind` does, in code that reads each character about once.
class Splitter {
  public:
    Splitter(SplitKind kind, std::shared_ptr<const CharacterClasses> classes);
    SplitKind kind() const { return kind_; }

    // The end of the word that begins at text[begin], begin < text.size(). Words cover the whole text.
    size_t word_end(std::string_view text, size_t begin) const;

    // Whether text may be cut at `at`: a word ends there, and the words of either side do not depend on the other. True
    // between an ASCII letter and white space, and behind a newline with no other white space beside it. (NFC may turn
    // other letters into a letter and a mark.) 0 < at < text.size().
    bool is_cut(std::string_view text, size_t at) const;

  private:
    size_t gpt2_end(std::string_view text, size_t begin) const;
    size_t llama_end(std::string_view text, size_t begin) const;
    size_t run_end(std::string_view text, size_t at, uint8_t classes) const;
    size_t punctuation_end(std::string_view text, size_t at) const;
    size_t space_end(std::string_view text, size_t begin, bool lines) const;

    SplitKind kind_;
    std::shared_ptr<const CharacterClasses> classes_;
    uint8_t letters_;  // classes of the characters of a word
    int digits_;       // at most, of a number
};

// The fields of "added_tokens" in tokenizer.json.
struct AddedToken {
    int32_t id = 0;
    std::string content;
    bool single_word = false;  // only between characters that are no word characters
    bool lstrip = false;       // includes the white space before it
    bool rstrip = false;       // includes the white space after it
    bool normalized = false;   // found in the normalized text
    bool special = false;      // decoding may leave it out
};

// Finds tokens such as <|endoftext|> in the text before the text is split into words: leftmost first, the longest at
// one place, as the `tokenizers` package does.
class AddedTokens {
  public:
    AddedTokens(std::vector<AddedToken> tokens, std::shared_ptr<const CharacterClasses> classes);

    // Calls found(id) for each added token and between(text) for the text between them, from left to right.
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

    // Whether a token contains white space or strips it from its neighbours, so that text cannot be cut at white space.
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
    std::vector<int32_t> roots_;  // by first byte; -1: no token begins with it
};

// A tokenizer.json as plain data.
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
    // `source` is the file that the model was read from.
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

// The bytes that a token of tokenizer.json stands for; none when a character stands for no byte.
std::optional<std::string> bytes_of_token(std::string_view token);
std::string token_of_bytes(std::string_view bytes);

}  // namespace tutti::text
