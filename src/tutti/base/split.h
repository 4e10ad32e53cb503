// base/split.h: the parts of a text between separators: "a,,b" has three, and "" has one; a text without its blanks.
#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

namespace tutti {

// The parts point into `text`.
inline std::vector<std::string_view> split(std::string_view text, char separator) {
    std::vector<std::string_view> parts;
    for (size_t begin = 0; begin <= text.size();) {
        const size_t end = std::min(text.find(separator, begin), text.size());
        parts.push_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
    return parts;
}

// `text` without `blanks` at both ends; a part of it.
constexpr std::string_view trimmed(std::string_view text, std::string_view blanks = " \t") {
    const size_t first = std::min(text.find_first_not_of(blanks), text.size());
    return text.substr(first, text.find_last_not_of(blanks) + 1 - first);
}

}  // namespace tutti
