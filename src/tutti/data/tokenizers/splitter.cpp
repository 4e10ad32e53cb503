#include "tutti/data/tokenizers/splitter.h"

#include <array>
#include <string>

namespace tutti::data {

namespace {

struct Known {
    SplitKind kind;
    std::string_view name, pattern;
};
constexpr std::array<Known, 4> kKnown = {{
    {SplitKind::gpt2, "gpt2", R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
    {SplitKind::llama3, "llama3",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {SplitKind::qwen, "qwen",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {SplitKind::qwen35, "qwen35",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
}};

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// The length of 's, 't, 're, 've, 'm, 'll or 'd at text[begin], or 0.
size_t contraction(std::string_view text, size_t begin, bool any_case) {
    const std::string_view rest = text.substr(begin + 1, 2);
    if (rest.empty()) return 0;
    const auto letter = [&](size_t i) { return any_case ? lower(rest[i]) : rest[i]; };
    const char c = letter(0);
    if (c == 's' || c == 't' || c == 'm' || c == 'd') return 2;
    if (rest.size() < 2) return 0;
    const char d = letter(1);
    if ((c == 'r' && d == 'e') || (c == 'v' && d == 'e') || (c == 'l' && d == 'l')) return 3;
    return any_case && rest == "\u017F" ? 3 : 0;  // the long s is an s of another case
}

}  // namespace

std::string_view name_of(SplitKind kind) { return kKnown[static_cast<size_t>(kind)].name; }
std::string_view pattern_of(SplitKind kind) { return kKnown[static_cast<size_t>(kind)].pattern; }
bool uses_nfc(SplitKind kind) { return kind == SplitKind::qwen || kind == SplitKind::qwen35; }
std::optional<SplitKind> split_kind_named(std::string_view name) {
    for (const Known& known : kKnown)
        if (known.name == name) return known.kind;
    return std::nullopt;
}
std::optional<SplitKind> split_kind_of_pattern(std::string_view pattern) {
    for (const Known& known : kKnown)
        if (known.pattern == pattern) return known.kind;
    return std::nullopt;
}

Splitter::Splitter(SplitKind kind, std::shared_ptr<const CharacterClasses> classes)
    : kind_(kind),
      classes_(std::move(classes)),
      letters_(kind == SplitKind::qwen35 ? kLetter | kMark : kLetter),
      digits_(kind == SplitKind::llama3 ? 3 : 1) {}

size_t Splitter::word_end(std::string_view text, size_t begin) const {
    return kind_ == SplitKind::gpt2 ? gpt2_end(text, begin) : llama_end(text, begin);
}

bool Splitter::is_cut(std::string_view text, size_t at) const {
    const char before = text[at - 1];
    if (before == '\n')
        return at > 1 && !classes_->ends_with(text, at - 1, kSpace) && !classes_->begins_with(text, at, kSpace | kMark);
    const bool letter = lower(before) >= 'a' && lower(before) <= 'z';
    return letter && classes_->begins_with(text, at, kSpace);
}

size_t Splitter::run_end(std::string_view text, size_t at, uint8_t classes) const {
    while (at < text.size()) {
        if (static_cast<unsigned char>(text[at]) < 0x80) {
            if ((classes_->of_ascii(text[at]) & classes) == 0) return at;
            ++at;
            continue;
        }
        const Character c = character_at(text, at);
        if ((classes_->of(c.code) & classes) == 0) return at;
        at += c.length;
    }
    return at;
}

size_t Splitter::punctuation_end(std::string_view text, size_t at) const {
    const uint8_t others = kSpace | kNumber | letters_;
    while (at < text.size()) {
        const Character c = character_at(text, at);
        if ((classes_->of(c.code) & others) != 0) return at;
        at += c.length;
    }
    return at;
}

// \s*[\r\n]+ when `lines`, then \s+(?!\S), then \s+; text[begin] is white space.
size_t Splitter::space_end(std::string_view text, size_t begin, bool lines) const {
    const size_t end = run_end(text, begin, kSpace);
    if (lines) {
        const size_t newline = text.substr(begin, end - begin).find_last_of("\r\n");
        if (newline != std::string_view::npos) return begin + newline + 1;
    }
    if (end == text.size()) return end;
    const size_t last = character_before(text, end);  // goes to the word that follows
    return last > begin ? last : end;
}

size_t Splitter::gpt2_end(std::string_view text, size_t begin) const {
    if (text[begin] == '\'')
        if (const size_t length = contraction(text, begin, false)) return begin + length;
    const size_t first = text[begin] == ' ' && begin + 1 < text.size() ? begin + 1 : begin;
    const uint8_t c = classes_->of(character_at(text, first).code);
    if (c & kLetter) return run_end(text, first, kLetter);
    if (c & kNumber) return run_end(text, first, kNumber);
    if (c & kSpace) return space_end(text, begin, false);
    return punctuation_end(text, first);
}

size_t Splitter::llama_end(std::string_view text, size_t begin) const {
    const Character c = character_at(text, begin);
    const uint8_t classes = classes_->of(c.code);
    if (classes & kLetter) return run_end(text, begin, letters_);
    if (c.code == '\'')
        if (const size_t length = contraction(text, begin, true)) return begin + length;
    if (classes & kNumber) {
        size_t end = begin + c.length;
        for (int digits = 1; digits < digits_ && classes_->begins_with(text, end, kNumber); ++digits)
            end += character_at(text, end).length;
        return end;
    }
    const size_t second = begin + c.length;
    if (c.code != '\r' && c.code != '\n' && classes_->begins_with(text, second, letters_))
        return run_end(text, second, letters_);
    if (classes & letters_) return run_end(text, begin, letters_);  // a mark by itself
    const size_t first = c.code == ' ' && second < text.size() ? second : begin;
    if ((classes_->of(character_at(text, first).code) & (kSpace | kNumber | letters_)) == 0) {
        size_t end = punctuation_end(text, first);
        while (end < text.size() && (text[end] == '\r' || text[end] == '\n')) ++end;
        return end;
    }
    return space_end(text, begin, true);
}

}  // namespace tutti::data
