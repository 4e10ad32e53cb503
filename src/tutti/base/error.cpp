#include "tutti/base/error.h"

#include <charconv>
#include <sstream>

namespace tutti {

namespace {

template <class... Value>
void append_chars(std::string& text, Value... value) {
    char chars[32];
    text.append(chars, std::to_chars(chars, chars + sizeof chars, value...).ptr);
}

}  // namespace

void TextPart::append(std::string& text, long long value) { append_chars(text, value); }
void TextPart::append(std::string& text, unsigned long long value) { append_chars(text, value); }
void TextPart::append(std::string& text, double value) { append_chars(text, value, std::chars_format::general, 6); }
void TextPart::append(std::string& text, Write* write, const void* value) {
    std::ostringstream out;
    write(out, value);
    text += out.view();
}

std::string concat(std::initializer_list<TextPart> parts) {
    std::string text;
    for (const TextPart& part : parts) part.append_to(text);
    return text;
}

}  // namespace tutti
