// base/strings.h: text is split, trimmed, compared in lower case and quoted for a shell.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/error.h"

namespace tutti {

// The parts of `text` between separators, which point into `text`: three of "a,,b", one of "".
inline std::vector<std::string_view> split(std::string_view text, char separator) {
    std::vector<std::string_view> parts;
    for (size_t begin = 0; begin <= text.size();) {
        const size_t end = std::min(text.find(separator, begin), text.size());
        parts.push_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
    return parts;
}

// The elements of a list on the command line, such as "offload,cp", which point into `text`. UsageError, naming
// `option`, for an element that is empty, has a blank at an end, or is given twice.
inline std::vector<std::string_view> different_elements(std::string_view option, std::string_view text) {
    const std::vector<std::string_view> elements = split(text, ',');
    for (auto element = elements.begin(); element != elements.end(); ++element) {
        check<UsageError>(!element->empty() && element->front() != ' ' && element->back() != ' ', option, " \"", text,
                          "\": required elements with commas between them, such as A,B: none empty, and no blanks");
        check<UsageError>(std::find(elements.begin(), element, *element) == element, option, " \"", text,
                          "\": ", *element, " is given twice");
    }
    return elements;
}

// Whether a path begins with the ~ of the home directory, which a shell expands at the begin of a word, outside of
// quotes, and nothing else does: as it stands it names a directory of the working directory.
constexpr bool begins_at_home(std::string_view path) { return path == "~" || path.starts_with("~/"); }

// `text` without `blanks` at both ends; points into `text`.
constexpr std::string_view trimmed(std::string_view text, std::string_view blanks = " \t") {
    const size_t first = std::min(text.find_first_not_of(blanks), text.size());
    return text.substr(first, text.find_last_not_of(blanks) + 1 - first);
}

// A letter or a digit of ASCII, in any locale.
constexpr bool is_alphanumeric(char32_t c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

// 'A' to 'Z' as 'a' to 'z' in any locale; all other bytes, those of UTF-8 too, stay.
constexpr char lower_case(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
inline std::string lower_case(std::string text) {
    for (char& c : text) c = lower_case(c);
    return text;
}

// `word`, quoted if a POSIX shell would otherwise read it differently.
inline std::string quoted_for_shell(const std::string& word) {
    constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./,:@%";
    if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
    std::string quoted = "'";
    for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return quoted + "'";
}

}  // namespace tutti
