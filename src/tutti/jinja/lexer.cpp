#include "tutti/jinja/lexer.h"

#include <algorithm>
#include <charconv>

#include "tutti/base/digits.h"

namespace tutti::jinja {

namespace {

using Is = Token::Kind;

bool is_digit(char32_t c) { return c >= '0' && c <= '9'; }
bool is_name(char32_t c) { return c == '_' || is_alphanumeric(c); }

class Lexer {
  public:
    Lexer(const std::string& name, std::string_view source) : name_(name) {
        Text text;
        try {
            text = from_utf8(source);
        } catch (const DataError& error) {
            fail(error.what());
        }
        for (size_t i = 0; i < text.size(); ++i) {
            const bool pair = text[i] == U'\r' && i + 1 < text.size() && text[i + 1] == U'\n';
            if (!pair) source_.push_back(text[i] == U'\r' ? Char{U'\n'} : text[i]);
        }
        if (!source_.empty() && source_.back() == U'\n') source_.pop_back();
    }

    std::vector<Token> run() {
        while (at_ < source_.size()) data_and_tag();
        put(Is::end);
        return std::move(tokens_);
    }

  private:
    char32_t look(size_t ahead = 0) const {
        return at_ + ahead < source_.size() ? source_[at_ + ahead].code : char32_t{0};
    }
    bool sees(std::string_view word, size_t ahead = 0) const {
        for (size_t i = 0; i < word.size(); ++i)
            if (look(ahead + i) != static_cast<unsigned char>(word[i])) return false;
        return true;
    }
    void skip(size_t count) {
        for (; count > 0 && at_ < source_.size(); --count) {
            const bool line = source_[at_++] == U'\n';
            place_ = line ? Place{place_.line + 1, 1} : Place{place_.line, place_.column + 1};
        }
    }
    void skip_spaces() {
        while (at_ < source_.size() && is_space(look())) skip(1);
    }
    [[noreturn]] void fail(const std::string& why) const { throw TemplateError(name_, place_, why); }
    void put(Is kind, std::string word = "", Value value = {}) {
        tokens_.push_back({kind, place_, std::move(word), std::move(value)});
    }

    // The text before a tag that begins with `sign` after its two characters. Without a sign, spaces between the
    // beginning of the line and a tag go, but not before an output.
    void put_data(size_t begin, size_t end, Place place, char32_t sign, bool output) {
        if (sign == '-') {
            while (end > begin && is_space(source_[end - 1].code)) --end;
        } else if (sign != '+' && !output) {
            size_t line = end;
            while (line > begin && source_[line - 1].code != '\n' && is_space(source_[line - 1].code)) --line;
            if (line == begin ? begins_line_ : source_[line - 1] == U'\n') end = line;
        }
        if (end > begin) tokens_.push_back({Is::data, place, "", part(source_, begin, end)});
    }

    // After a tag: `-` takes all white space, `+` none, and else a tag takes the newline that follows.
    void end_tag(bool takes_newline, bool takes_spaces) {
        const size_t before = at_;
        if (takes_spaces)
            skip_spaces();
        else if (takes_newline && look() == '\n')
            skip(1);
        begins_line_ = at_ > before && source_[at_ - 1] == U'\n';
    }

    // Whether the end of a tag is here: `%}`, `-%}` or `+%}`; its length, 0: no.
    size_t end_here(std::string_view end) const {
        if (sees(end)) return end.size();
        return (look() == '-' || (look() == '+' && end != "}}")) && sees(end, 1) ? end.size() + 1 : 0;
    }

    void data_and_tag() {
        const size_t begin = at_;
        const Place place = place_;
        while (at_ < source_.size() && !sees("{{") && !sees("{%") && !sees("{#")) skip(1);
        if (at_ == source_.size()) return put_data(begin, at_, place, '+', false);
        const char32_t kind = look(1);
        const char32_t sign = look(2) == '-' || look(2) == '+' ? look(2) : 0;
        put_data(begin, at_, place, sign, kind == '{');
        const Place tag = place_;
        skip(sign ? 3 : 2);
        if (kind == '#') return comment(tag);
        if (kind == '%' && raw(tag)) return;
        tokens_.push_back({kind == '{' ? Is::output_begin : Is::tag_begin, tag, "", {}});
        inside(kind == '{' ? "}}" : "%}", tag);
    }

    void comment(Place tag) {
        const size_t begin = at_;
        while (at_ < source_.size() && !sees("#}")) skip(1);
        if (at_ == source_.size()) throw TemplateError(name_, tag, "the comment has no end, #}");
        const char32_t sign = at_ > begin ? source_[at_ - 1].code : 0;
        skip(2);
        end_tag(sign != '+', sign == '-');
    }

    // {% raw %}...{% endraw %}. Returns false, and skips nothing, where the tag is another one.
    bool raw(Place tag) {
        size_t ahead = 0;
        const auto spaces = [&] {
            while (at_ + ahead < source_.size() && is_space(look(ahead))) ++ahead;
        };
        const auto word = [&](std::string_view w) {
            spaces();
            if (!sees(w, ahead)) return false;
            ahead += w.size();
            spaces();
            return true;
        };
        if (!word("raw")) return false;
        if (sees("%}", ahead)) {
            skip(ahead + 2);
        } else if (sees("-%}", ahead)) {
            skip(ahead + 3);
            skip_spaces();
        } else {
            return false;
        }
        begins_line_ = source_[at_ - 1] == U'\n';
        const size_t begin = at_;
        const Place place = place_;
        for (; at_ < source_.size(); skip(1)) {
            if (!sees("{%")) continue;
            const char32_t sign = look(2) == '-' || look(2) == '+' ? look(2) : 0;
            ahead = sign ? 3 : 2;
            if (!word("endraw")) continue;
            const char32_t end_sign = look(ahead) == '-' || look(ahead) == '+' ? look(ahead) : 0;
            if (end_sign) ++ahead;
            if (!sees("%}", ahead)) continue;
            put_data(begin, at_, place, sign, false);
            skip(ahead + 2);
            end_tag(end_sign == 0, end_sign == '-');
            return true;
        }
        throw TemplateError(name_, tag, "the tag raw has no endraw");
    }

    void inside(std::string_view end, Place tag) {
        std::string open;  // brackets that wait for their end
        for (;;) {
            skip_spaces();
            if (at_ == source_.size()) throw TemplateError(name_, tag, concat("the tag has no end, ", end));
            if (const size_t length = open.empty() ? end_here(end) : 0; length > 0) {
                const char32_t sign = length > 2 ? look() : 0;
                put(end == "}}" ? Is::output_end : Is::tag_end);
                skip(length);
                return end_tag(end != "}}" && sign != '+', sign == '-');
            }
            if (is_digit(look())) {
                number();
            } else if (is_name(look())) {
                name();
            } else if (look() == '\'' || look() == '"') {
                text();
            } else {
                sign(open);
            }
        }
    }

    void name() {
        size_t length = 0;
        std::string word;
        while (is_name(look(length))) word += static_cast<char>(look(length++));
        put(Is::name, word);
        skip(length);
    }

    void number() {
        const bool after_dot = !tokens_.empty() && tokens_.back().is(Is::sign, ".");
        size_t length = 0;
        std::string digits;
        const auto take = [&] {
            while (is_digit(look(length)) || (look(length) == '_' && is_digit(look(length + 1)))) {
                if (look(length) != '_') digits += static_cast<char>(look(length));
                ++length;
            }
        };
        take();
        bool real = false;
        if (!after_dot && look(length) == '.' && is_digit(look(length + 1))) {
            real = true;
            digits += '.';
            ++length;
            take();
        }
        if (!after_dot && (look(length) == 'e' || look(length) == 'E')) {
            const size_t sign = look(length + 1) == '+' || look(length + 1) == '-' ? 1 : 0;
            if (is_digit(look(length + 1 + sign))) {
                real = true;
                digits += 'e';
                if (sign) digits += static_cast<char>(look(length + 1));
                length += 1 + sign;
                take();
            }
        }
        if (is_name(look(length))) fail("required a decimal number; a name cannot begin with a digit");
        const char *begin = digits.data(), *end = begin + digits.size();
        if (real) {
            double value = 0;
            if (std::from_chars(begin, end, value).ec != std::errc()) fail(concat(digits, " is no number of 64 bits"));
            put(Is::number, "", value);
        } else {
            int64_t value = 0;
            if (std::from_chars(begin, end, value).ec != std::errc()) fail(concat(digits, " is no integer of 64 bits"));
            put(Is::number, "", value);
        }
        skip(length);
    }

    // With Python's escapes; an unknown one stays as it is.
    void text() {
        const Place place = place_;
        const char32_t quote = look();
        Text value;
        for (skip(1); look() != quote; skip(1)) {
            if (at_ == source_.size()) throw TemplateError(name_, place, "the text has no end");
            if (look() == '\\')
                escape(value);
            else
                value.push_back(source_[at_]);
        }
        skip(1);
        tokens_.push_back({Is::text, place, "", std::move(value)});
    }

    void escape(Text& value) {
        skip(1);
        const char32_t letter = look();
        constexpr std::string_view kLetters = "abfnrtv\\'\"", kMeanings = "\a\b\f\n\r\t\v\\'\"";
        if (letter == '\n') return;
        if (letter >= '0' && letter <= '7') {
            char32_t code = letter - '0';
            for (int i = 0; i < 2 && look(1) >= '0' && look(1) <= '7'; ++i, skip(1)) code = 8 * code + look(1) - '0';
            return value.push_back({code});
        }
        const size_t known = letter < 0x80 ? kLetters.find(static_cast<char>(letter)) : std::string_view::npos;
        if (known != std::string_view::npos && letter != 0)
            return value.push_back({static_cast<unsigned char>(kMeanings[known])});
        const int digits = letter == 'x' ? 2 : letter == 'u' ? 4 : letter == 'U' ? 8 : 0;
        if (letter == 'N') fail("\\N{...}: names of characters are not supported; write \\u and four digits");
        if (digits == 0) {
            value.push_back({'\\'});
            if (at_ < source_.size()) value.push_back(source_[at_]);
            return;
        }
        char32_t code = 0;
        for (int i = 0; i < digits; ++i, skip(1)) {
            const int digit = hex_value(look(1));
            if (digit < 0) fail(concat("required ", digits, " hexadecimal digits"));
            code = 16 * code + static_cast<char32_t>(digit);
        }
        if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) fail("the escape is no Unicode character");
        value.push_back({code});
    }

    void sign(std::string& open) {
        constexpr const char* kSigns[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
                                          "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
        const auto* found = std::find_if(std::begin(kSigns), std::end(kSigns), [&](const char* s) { return sees(s); });
        if (found == std::end(kSigns)) fail(concat("unexpected character ", shown(Value(Text{source_[at_]}))));
        const std::string word = *found;
        const size_t opens = std::string_view("([{").find(word), closes = std::string_view(")]}").find(word);
        if (opens != std::string_view::npos) open += ")]}"[opens];
        if (closes != std::string_view::npos) {
            if (open.empty() || open.back() != word[0])
                fail(concat("unexpected ", word, open.empty() ? "" : concat("; required ", open.back())));
            open.pop_back();
        }
        put(Is::sign, word);
        skip(word.size());
    }

    std::string name_;
    Text source_;
    size_t at_ = 0;
    Place place_;
    bool begins_line_ = true;  // whether the text from here on begins a line
    std::vector<Token> tokens_;
};

}  // namespace

std::string Token::described() const {
    switch (kind) {
        case Is::data: return "the text of the template";
        case Is::output_begin: return "{{";
        case Is::output_end: return "}}";
        case Is::tag_begin: return "{%";
        case Is::tag_end: return "%}";
        case Is::end: return "the end of the template";
        case Is::text:
        case Is::number: return to_utf8(repr(value));
        default: return word;
    }
}

std::vector<Token> tokens_of(const std::string& name, std::string_view source) { return Lexer(name, source).run(); }

}  // namespace tutti::jinja
