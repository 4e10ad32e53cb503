#include "tutti/cli/text.h"

#include <algorithm>

namespace tutti::cli {

namespace {

size_t code_points(const std::string& text) {
    return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string padding(const std::string& text, size_t width) {
    const size_t length = code_points(text);
    return std::string(length < width ? width - length : 0, ' ');
}

}  // namespace

std::string left(const std::string& text, size_t width) { return text + padding(text, width); }

std::string right(const std::string& text, size_t width) { return padding(text, width) + text; }

}  // namespace tutti::cli
