#include "tutti/data/tokenizers/unicode.h"

#include <algorithm>

namespace tutti::data {

Character character_at(std::string_view text, size_t at) {
    const auto byte = [&](size_t i) -> uint32_t { return static_cast<unsigned char>(text[i]); };
    const uint32_t first = byte(at);
    if (first < 0x80) return {first, 1};
    const size_t left = text.size() - at;
    const auto follows = [&](size_t i) { return i < left && (byte(at + i) & 0xC0) == 0x80; };
    const Character invalid{kCodePoints + first, 1};
    if (first < 0xC2) return invalid;
    if (first < 0xE0) {
        if (!follows(1)) return invalid;
        return {(first & 0x1F) << 6 | (byte(at + 1) & 0x3F), 2};
    }
    if (first < 0xF0) {
        if (!follows(1) || !follows(2)) return invalid;
        const uint32_t code = (first & 0x0F) << 12 | (byte(at + 1) & 0x3F) << 6 | (byte(at + 2) & 0x3F);
        return code < 0x800 || (code >= 0xD800 && code < 0xE000) ? invalid : Character{code, 3};
    }
    if (first > 0xF4 || !follows(1) || !follows(2) || !follows(3)) return invalid;
    const uint32_t code =
        (first & 0x07) << 18 | (byte(at + 1) & 0x3F) << 12 | (byte(at + 2) & 0x3F) << 6 | (byte(at + 3) & 0x3F);
    return code < 0x10000 || code >= kCodePoints ? invalid : Character{code, 4};
}

void append_utf8(uint32_t code, std::string& text) {
    const auto put = [&](uint32_t byte) { text += static_cast<char>(static_cast<unsigned char>(byte)); };
    if (code >= kCodePoints) return put(code - kCodePoints);
    if (code < 0x80) return put(code);
    if (code < 0x800) {
        put(0xC0 | code >> 6);
    } else {
        if (code < 0x10000) {
            put(0xE0 | code >> 12);
        } else {
            put(0xF0 | code >> 18);
            put(0x80 | (code >> 12 & 0x3F));
        }
        put(0x80 | (code >> 6 & 0x3F));
    }
    put(0x80 | (code & 0x3F));
}

CharacterClasses::CharacterClasses() : classes_(kCodePoints + 256) {
    for (const ClassRange& range : class_ranges())
        std::fill(classes_.begin() + range.first, classes_.begin() + range.last + 1, range.classes);
}

size_t character_before(std::string_view text, size_t end) {
    // A character has at most four bytes; the one that ends here begins at the farthest place from which it decodes.
    for (size_t length = std::min<size_t>(4, end); length > 1; --length)
        if (character_at(text.substr(0, end), end - length).length == length) return end - length;
    return end - 1;
}

bool CharacterClasses::ends_with(std::string_view text, size_t end, uint8_t classes) const {
    return end > 0 && (of(character_at(text.substr(0, end), character_before(text, end)).code) & classes) != 0;
}
bool CharacterClasses::begins_with(std::string_view text, size_t begin, uint8_t classes) const {
    return begin < text.size() && (of(character_at(text, begin).code) & classes) != 0;
}

}  // namespace tutti::data
