// data/tokenizers/splitter.h: cuts text into the words that a byte-level BPE merges each by itself. Exactly the regular
// expressions of GPT-2, Llama 3 and Qwen, as code that reads each character about once.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>

#include "tutti/data/tokenizers/unicode.h"

namespace tutti::data {

// gpt2      's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// llama3    (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|
//           \s+(?!\S)|\s+
// qwen      as llama3 with \p{N}
// qwen35    as qwen with [\p{L}\p{M}]+ for \p{L}+, and \p{M} no punctuation
enum class SplitKind { gpt2, llama3, qwen, qwen35 };

std::string_view name_of(SplitKind kind);
std::optional<SplitKind> split_kind_named(std::string_view name);
std::string_view pattern_of(SplitKind kind);
bool uses_nfc(SplitKind kind);  // the tokenizers of this family normalize first
std::optional<SplitKind> split_kind_of_pattern(std::string_view pattern);

class Splitter {
  public:
    Splitter(SplitKind kind, std::shared_ptr<const CharacterClasses> classes);
    SplitKind kind() const { return kind_; }

    // The end of the word that begins at text[begin], begin < text.size(). Words cover the whole text.
    size_t word_end(std::string_view text, size_t begin) const;

    // Whether a word ends at `at` and the words on both sides stay the same when the other side is taken away: between
    // an ASCII letter and white space, or behind a newline with no other white space beside it. (Other letters may
    // become a letter and a mark in NFC.) 0 < at < text.size().
    bool is_cut(std::string_view text, size_t at) const;

  private:
    size_t gpt2_end(std::string_view text, size_t begin) const;
    size_t llama_end(std::string_view text, size_t begin) const;
    size_t run_end(std::string_view text, size_t at, uint8_t classes) const;
    size_t punctuation_end(std::string_view text, size_t at) const;
    size_t space_end(std::string_view text, size_t begin, bool lines) const;

    SplitKind kind_;
    std::shared_ptr<const CharacterClasses> classes_;
    uint8_t letters_;  // what makes words
    int digits_;       // of a number, at most
};

}  // namespace tutti::data
