// text/unicode.h: the Unicode that tokenizers need: UTF-8, classes of characters as a table that one load
// reads, and the normal form NFC.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tutti/text/unicode_tables.h"

namespace tutti::text {

constexpr uint32_t kCodePoints = 0x110000;

// The character that begins at text[at]. A byte that begins no character (overlong forms, surrogates and cut sequences
// included) is a character of length 1 with `code` = kCodePoints + byte, so text with such bytes keeps them.
struct Character {
    uint32_t code;
    uint32_t length;
};
Character character_at(std::string_view text, size_t at);

void append_utf8(uint32_t code, std::string& text);  // also of kCodePoints + byte

// kLetter | kMark | ... of each code point; 0 for bytes that are no character.
class CharacterClasses {
  public:
    CharacterClasses();
    uint8_t of(uint32_t code) const { return classes_[code]; }
    uint8_t of_ascii(char c) const { return classes_[static_cast<unsigned char>(c)]; }
    // Whether text[..end) ends, or text[begin..) begins, with a character of these classes.
    bool ends_with(std::string_view text, size_t end, uint8_t classes) const;
    bool begins_with(std::string_view text, size_t begin, uint8_t classes) const;

  private:
    std::vector<uint8_t> classes_;
};

// The begin of the character that ends at text[end - 1], end > 0.
size_t character_before(std::string_view text, size_t end);

// Unicode's canonical composed form (UAX #15), which the Qwen tokenizers apply to their text.
class Nfc {
  public:
    Nfc();
    // `text` in NFC: `text` itself when it is normalized already (nearly all text is), else a view of `buffer`. Bytes
    // that are not UTF-8 stay as they are.
    std::string_view normalize(std::string_view text, std::string& buffer) const;

  private:
    void decompose(uint32_t code, std::vector<uint32_t>& out) const;
    std::string normalize_segment(std::string_view segment) const;
    uint32_t compose(uint32_t first, uint32_t second) const;  // 0: the pair does not compose

    std::vector<uint8_t> combining_class_;
    // Characters of combining class 0 that NFC neither changes nor joins to the character before. The normal form of
    // the text between two of them depends on nothing outside.
    std::vector<bool> stands_alone_;
    std::unordered_map<uint32_t, Decomposition> decompositions_;
    std::unordered_map<uint64_t, uint32_t> compositions_;  // first << 32 | second
};

}  // namespace tutti::text
