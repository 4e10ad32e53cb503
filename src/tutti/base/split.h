// base/split.h: the parts of a text between separators: "a,,b" has three, and "" has one.
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

}  // namespace tutti
