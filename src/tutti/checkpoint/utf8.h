// checkpoint/utf8.h: is it UTF-8? (RFC 3629: no overlong forms, no surrogates, at most U+10FFFF.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tutti::checkpoint {

// The offset of the first byte that does not belong, or npos.
inline size_t find_invalid_utf8(std::string_view text) {
    const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
    const auto continues = [&](size_t i) { return (byte(i) & 0xc0u) == 0x80u; };
    for (size_t i = 0; i < text.size();) {
        const unsigned first = byte(i), second = byte(i + 1);
        if (first < 0x80) {
            i += 1;
        } else if (first >= 0xc2 && first <= 0xdf && continues(i + 1)) {
            i += 2;
        } else if (first >= 0xe0 && first <= 0xef && continues(i + 1) && continues(i + 2) &&
                   !(first == 0xe0 && second < 0xa0) && !(first == 0xed && second > 0x9f)) {
            i += 3;
        } else if (first >= 0xf0 && first <= 0xf4 && continues(i + 1) && continues(i + 2) && continues(i + 3) &&
                   !(first == 0xf0 && second < 0x90) && !(first == 0xf4 && second > 0x8f)) {
            i += 4;
        } else {
            return i;
        }
    }
    return std::string_view::npos;
}

inline void append_utf8(std::string& text, uint32_t code_point) {
    const auto put = [&](uint32_t bits) { text += static_cast<char>(static_cast<unsigned char>(bits)); };
    if (code_point < 0x80) {
        put(code_point);
    } else if (code_point < 0x800) {
        put(0xc0 | (code_point >> 6));
        put(0x80 | (code_point & 0x3f));
    } else if (code_point < 0x10000) {
        put(0xe0 | (code_point >> 12));
        put(0x80 | ((code_point >> 6) & 0x3f));
        put(0x80 | (code_point & 0x3f));
    } else {
        put(0xf0 | (code_point >> 18));
        put(0x80 | ((code_point >> 12) & 0x3f));
        put(0x80 | ((code_point >> 6) & 0x3f));
        put(0x80 | (code_point & 0x3f));
    }
}

}  // namespace tutti::checkpoint
