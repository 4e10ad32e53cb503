#include "tutti/jinja/text.h"

#include <algorithm>
#include <iterator>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/jinja/case_tables.h"

namespace tutti::jinja {

namespace {

// The code point at `at` and its length in bytes; length 0: not UTF-8 (RFC 3629).
std::pair<char32_t, size_t> decode(std::string_view bytes, size_t at) {
    const auto byte = [&](size_t i) { return i < bytes.size() ? static_cast<unsigned char>(bytes[i]) : 0U; };
    const unsigned first = byte(at);
    if (first < 0x80) return {first, 1};
    const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    if (first < 0xC2 || first > 0xF4) return {0, 0};
    char32_t code = first & (0x7FU >> length);
    for (size_t i = 1; i < length; ++i) {
        const unsigned next = byte(at + i);
        if ((next & 0xC0) != 0x80) return {0, 0};
        code = code << 6 | (next & 0x3F);
    }
    constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};  // by length
    const bool legal = code >= kLeast[length] && code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF);
    return {code, legal ? length : 0};
}

// `code` after the change that `runs` describe.
char32_t changed(char32_t code, std::span<const CaseRun> runs) {
    const auto after =
        std::upper_bound(runs.begin(), runs.end(), code, [](char32_t c, const CaseRun& run) { return c < run.first; });
    if (after == runs.begin()) return code;
    const CaseRun& run = *std::prev(after);
    const char32_t steps = (code - run.first) / run.stride;
    const bool inside = steps < run.count && code == run.first + steps * run.stride;
    return inside ? static_cast<char32_t>(static_cast<int64_t>(code) + run.delta) : code;
}

const CaseExpansion* expansion_of(char32_t code) {
    const auto all = upper_expansions();
    const auto found = std::find_if(all.begin(), all.end(), [&](const CaseExpansion& e) { return e.code == code; });
    return found == all.end() ? nullptr : &*found;
}

void put_upper(Text& text, const Char& c) {
    if (const CaseExpansion* several = c.code < 0x80 ? nullptr : expansion_of(c.code)) {
        for (const char32_t* code = several->text; *code; ++code) text.push_back({*code, c.source, c.generated});
        return;
    }
    const bool small = c.code >= 'a' && c.code <= 'z';
    text.push_back({small ? c.code - 0x20 : changed(c.code, upper_runs()), c.source, c.generated});
}

void put_lower(Text& text, const Char& c) {
    check<DataError>(c.code != 0x3A3,
                     "lower case of the Greek letter sigma, which depends on its word, is not supported");
    const bool capital = c.code >= 'A' && c.code <= 'Z';
    text.push_back({capital ? c.code + 0x20 : changed(c.code, lower_runs()), c.source, c.generated});
    if (c.code != 0x130) return;  // I with a dot: its lower case is two
    text.back().code = 'i';
    text.push_back({0x307, c.source, c.generated});
}

}  // namespace

Text from_utf8(std::string_view bytes, uint32_t source) {
    Text text;
    text.reserve(bytes.size());
    for (size_t at = 0; at < bytes.size();) {
        const auto [code, length] = decode(bytes, at);
        check<DataError>(length > 0, "byte ", at, " is not UTF-8");
        text.push_back({code, source});
        at += length;
    }
    return text;
}

void append_utf8(std::string& bytes, char32_t code) {
    const auto put = [&](char32_t byte) { bytes += static_cast<char>(static_cast<unsigned char>(byte)); };
    if (code < 0x80) return put(code);
    const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    constexpr char32_t kFirst[] = {0, 0xC0, 0xE0, 0xF0};
    put(kFirst[more] | code >> (6 * more));
    for (int i = more - 1; i >= 0; --i) put(0x80 | (code >> (6 * i) & 0x3F));
}

std::string to_utf8(const Text& text) {
    std::string bytes;
    bytes.reserve(text.size());
    for (const Char& c : text) append_utf8(bytes, c.code);
    return bytes;
}

void append(Text& text, std::string_view ascii, uint32_t source) {
    check<DataError>(text.size() + ascii.size() <= kLongest, "a text grows beyond ", kLongest, " characters");
    for (const char c : ascii) text.push_back({static_cast<unsigned char>(c), source});
}

void append(Text& text, const Text& more) {
    check<DataError>(text.size() + more.size() <= kLongest, "a text grows beyond ", kLongest, " characters");
    text.insert(text.end(), more.begin(), more.end());
}

Text part(const Text& text, size_t begin, size_t end) {
    const auto at = [&](size_t i) { return text.begin() + static_cast<std::ptrdiff_t>(i); };
    return {at(begin), at(end)};
}

bool is_space(char32_t c) {
    return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

size_t find(const Text& text, const Text& word, size_t from) {
    if (from > text.size()) return kNowhere;
    const auto found =
        std::search(text.begin() + static_cast<std::ptrdiff_t>(from), text.end(), word.begin(), word.end());
    const auto at = to_size(found - text.begin());
    return at == text.size() && !word.empty() ? kNowhere : at;
}

bool starts_with(const Text& text, const Text& prefix) {
    return prefix.size() <= text.size() && std::equal(prefix.begin(), prefix.end(), text.begin());
}

bool ends_with(const Text& text, const Text& suffix) {
    return suffix.size() <= text.size() && std::equal(suffix.rbegin(), suffix.rend(), text.rbegin());
}

Text strip(const Text& text, Side side, const Text* characters) {
    const auto goes = [&](const Char& c) {
        return characters ? std::find(characters->begin(), characters->end(), c) != characters->end()
                          : is_space(c.code);
    };
    size_t begin = 0, end = text.size();
    if (side != Side::right)
        while (begin < end && goes(text[begin])) ++begin;
    if (side != Side::left)
        while (end > begin && goes(text[end - 1])) --end;
    return part(text, begin, end);
}

std::vector<Text> split(const Text& text, const Text* separator, int64_t most) {
    std::vector<Text> parts;
    const auto more = [&] { return most < 0 || static_cast<int64_t>(parts.size()) < most; };
    size_t begin = 0;
    if (separator) {
        for (size_t end = 0; more() && (end = find(text, *separator, begin)) != kNowhere;) {
            parts.push_back(part(text, begin, end));
            begin = end + separator->size();
        }
        parts.push_back(part(text, begin, text.size()));
        return parts;
    }
    for (;;) {
        while (begin < text.size() && is_space(text[begin].code)) ++begin;
        if (begin == text.size()) return parts;
        if (!more()) {
            parts.push_back(part(text, begin, text.size()));
            return parts;
        }
        size_t end = begin;
        while (end < text.size() && !is_space(text[end].code)) ++end;
        parts.push_back(part(text, begin, end));
        begin = end;
    }
}

std::vector<Text> split_from_right(const Text& text, const Text* separator, int64_t most) {
    const auto reversed = [](const Text& t) { return Text(t.rbegin(), t.rend()); };
    const Text backward = separator ? reversed(*separator) : Text();
    std::vector<Text> parts = split(reversed(text), separator ? &backward : nullptr, most);
    std::transform(parts.begin(), parts.end(), parts.begin(), reversed);
    std::reverse(parts.begin(), parts.end());
    return parts;
}

std::vector<Text> split_lines(const Text& text, bool keep_ends) {
    const auto ends_line = [](char32_t c) {
        return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
    };
    std::vector<Text> lines;
    for (size_t begin = 0, end = 0; begin < text.size(); begin = end) {
        while (end < text.size() && !ends_line(text[end].code)) ++end;
        const size_t content = end;
        if (end < text.size()) end += text[end] == U'\r' && end + 1 < text.size() && text[end + 1] == U'\n' ? 2 : 1;
        lines.push_back(part(text, begin, keep_ends ? end : content));
    }
    return lines;
}

Text replaced(const Text& text, const Text& old, const Text& by, int64_t most) {
    Text result;
    size_t begin = 0;
    const auto more = [&] { return most < 0 || most-- > 0; };
    if (old.empty()) {  // between all characters, as in Python
        for (; begin < text.size() && more(); ++begin) {
            append(result, by);
            result.push_back(text[begin]);
        }
        if (begin == text.size() && more()) append(result, by);
    } else {
        for (size_t end = 0; (end = find(text, old, begin)) != kNowhere && more(); begin = end + old.size()) {
            append(result, part(text, begin, end));
            append(result, by);
        }
    }
    append(result, part(text, begin, text.size()));
    return result;
}

Text with_case(const Text& text, Letters letters) {
    Text result;
    const auto titles = own_titles();
    bool first = true;
    for (const Char& c : text) {
        const bool title = first && (letters == Letters::capitalize || letters == Letters::title);
        check<DataError>(letters != Letters::title || c.code < 0x80, "title(): a character outside of ASCII");
        const bool own = std::find(titles.begin(), titles.end(), c.code) != titles.end() || expansion_of(c.code);
        if (title && own)
            throw DataError(concat("capitalize() of \"", to_utf8({c}),
                                   "\", whose title case is not its upper case, is not supported"));
        if (letters == Letters::upper || title)
            put_upper(result, c);
        else
            put_lower(result, c);
        const char32_t folded = c.code | 0x20;
        first = letters == Letters::title && (folded < 'a' || folded > 'z');
    }
    return result;
}

}  // namespace tutti::jinja
