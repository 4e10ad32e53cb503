#include "tutti/checkpoint/strict_json.h"

#include "tutti/checkpoint/utf8.h"

namespace tutti::checkpoint {

StrictJson::StrictJson(std::string_view text, const std::string& path, std::string_view what, int64_t first_byte)
    : text_(text), path_(path), what_(what), first_byte_(first_byte) {
    if (const size_t bad = find_invalid_utf8(text_); bad != std::string_view::npos) fail_at(bad, "is not UTF-8");
}

void StrictJson::skip_space() {
    while (at_ < text_.size() && std::string_view(" \t\n\r").find(text_[at_]) != std::string_view::npos) ++at_;
}

char StrictJson::peek() {
    skip_space();
    if (at_ == text_.size()) fail_at(at_, "it ends too early");
    return text_[at_];
}

void StrictJson::expect(char c) {
    const char came = peek();
    if (came != c) fail_at(at_, "expected '", c, "', found '", came, "'");
    ++at_;
}

bool StrictJson::take(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
}

void StrictJson::end() {
    skip_space();
    if (at_ != text_.size()) fail_at(at_, "only spaces may follow the last '}'");
}

std::string StrictJson::string() {
    expect('"');
    std::string value;
    while (at_ < text_.size() && text_[at_] != '"') {
        const char c = text_[at_];
        if (static_cast<unsigned char>(c) < 0x20) fail_at(at_, "a control character in a string");
        if (c == '\\') {
            escape(value);
        } else {
            value += c;
            ++at_;
        }
    }
    if (at_ == text_.size()) fail_at(at_, "a string without end");
    ++at_;
    return value;
}

void StrictJson::escape(std::string& value) {
    const size_t start = at_++;
    const char c = at_ < text_.size() ? text_[at_++] : '\0';
    constexpr std::string_view kCodes = "\"\\/bfnrt", kValues = "\"\\/\b\f\n\r\t";
    if (const size_t i = kCodes.find(c); i != std::string_view::npos && c != '\0') {
        value += kValues[i];
        return;
    }
    if (c != 'u') fail_at(start, "an unknown escape in a string");
    uint32_t code = hex4(start);
    if (code == 0) fail_at(start, "a NUL character in a string");
    if (code >= 0xd800 && code <= 0xdbff && text_.substr(at_, 2) == "\\u") {
        at_ += 2;
        const uint32_t low = hex4(start);
        if (low < 0xdc00 || low > 0xdfff) fail_at(start, "half a surrogate pair");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    if (code >= 0xd800 && code <= 0xdfff) fail_at(start, "half a surrogate pair");
    append_utf8(value, code);
}

uint32_t StrictJson::hex4(size_t start) {
    uint32_t code = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
        const char c = at_ < text_.size() ? text_[at_] : '\0';
        const bool digit = c >= '0' && c <= '9', lower = c >= 'a' && c <= 'f', upper = c >= 'A' && c <= 'F';
        if (!digit && !lower && !upper) fail_at(start, "\\u needs four hexadecimal digits");
        code = code * 16 + static_cast<uint32_t>(digit ? c - '0' : lower ? c - 'a' + 10 : c - 'A' + 10);
    }
    return code;
}

int64_t StrictJson::integer() {
    const char first = peek();
    const size_t start = at_;
    int64_t value = 0;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
        if (__builtin_mul_overflow(value, int64_t{10}, &value) ||
            __builtin_add_overflow(value, int64_t{text_[at_] - '0'}, &value))
            fail_at(start, "a number beyond 2^63 - 1");
    }
    // What stops the digits ('.', 'e', '-') is refused by whoever expects ',' or ']' next.
    if (at_ == start || (first == '0' && at_ - start > 1)) fail_at(start, "expected a whole number, digits only");
    return value;
}

std::vector<int64_t> StrictJson::integers(size_t at_most, std::string_view what) {
    std::vector<int64_t> values;
    expect('[');
    if (take(']')) return values;
    do {
        if (values.size() == at_most) fail_at(at_, what, " has more than ", at_most, " numbers");
        values.push_back(integer());
    } while (take(','));
    expect(']');
    return values;
}

void StrictJson::skip_value(int depth) {
    const char first = peek();
    if (first == '"') {
        string();
    } else if (first == '{' || first == '[') {
        if (depth == 0) fail_at(at_, "nested too deeply");
        if (first == '{') return object("", [&](const std::string&, size_t) { skip_value(depth - 1); });
        expect('[');
        if (take(']')) return;
        do skip_value(depth - 1);
        while (take(','));
        expect(']');
    } else {  // a number, true, false, null: nobody reads it, so its letters are enough
        const size_t start = at_;
        constexpr std::string_view kLetters = "0123456789+-.eEtrufalsn";
        while (at_ < text_.size() && kLetters.find(text_[at_]) != std::string_view::npos) ++at_;
        if (at_ == start) fail_at(start, "expected a value, found '", first, "'");
    }
}

}  // namespace tutti::checkpoint
