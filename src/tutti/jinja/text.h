// jinja/text.h: the texts of a template: code points, as in Python, each of which knows where it came from.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/to_size.h"

namespace tutti::jinja {

struct Char {
    char32_t code = 0;
    uint32_t source = 0;     // 0: the template; n: the n-th text of the input
    bool generated = false;  // written inside a generation tag
    bool operator==(char32_t other) const { return code == other; }
    bool operator==(const Char& other) const { return code == other.code; }
};
using Text = std::vector<Char>;

// Bytes that are not UTF-8 are an Error with their offset.
Text from_utf8(std::string_view bytes, uint32_t source = 0);
std::string to_utf8(const Text& text);
void append_utf8(std::string& bytes, char32_t code);

constexpr size_t kLongest = size_t{1} << 22;  // characters of a text: append() refuses more
void append(Text& text, std::string_view ascii, uint32_t source = 0);
void append(Text& text, const Text& more);
Text part(const Text& text, size_t begin, size_t end);

bool is_space(char32_t code);  // str.isspace() of Python
constexpr size_t kNowhere = to_size(-1);
size_t find(const Text& text, const Text& word, size_t from = 0);
bool starts_with(const Text& text, const Text& prefix);
bool ends_with(const Text& text, const Text& suffix);

enum class Side { left, right, both };
// Without `characters`: white space.
Text strip(const Text& text, Side side, const Text* characters = nullptr);
// str.split(): between white space without `separator`, at most `most` times if that is not negative. A separator must
// not be empty.
std::vector<Text> split(const Text& text, const Text* separator, int64_t most);
std::vector<Text> split_from_right(const Text& text, const Text* separator, int64_t most);
std::vector<Text> split_lines(const Text& text, bool keep_ends);
Text replaced(const Text& text, const Text& old, const Text& by, int64_t most);  // most < 0: all

enum class Letters { upper, lower, capitalize, title };
// As Python's upper(), lower(), capitalize() and title(). DataError where a result depends on a character's neighbours,
// and for title() outside of ASCII.
Text with_case(const Text& text, Letters letters);

}  // namespace tutti::jinja
