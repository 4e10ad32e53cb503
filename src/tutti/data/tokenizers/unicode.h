// data/tokenizers/unicode.h: UTF-8 and the facts about code points that tokenizers need, as tables that one load reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/data/tokenizers/unicode_tables.h"

namespace tutti::data {

constexpr uint32_t kCodePoints = 0x110000;

// The character that begins at text[at]. A byte that begins no character (overlong forms, surrogates and cut sequences
// included) is one of length 1 with `code` = kCodePoints + byte: text with such bytes keeps them.
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

// The begin of the character that ends at text[end), end > 0.
size_t character_before(std::string_view text, size_t end);

}  // namespace tutti::data
