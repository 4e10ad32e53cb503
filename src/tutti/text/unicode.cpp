#include "tutti/text/unicode.h"

#include <algorithm>

namespace tutti::text {

Character character_at(std::string_view text, size_t at) {
    const auto byte = [&](size_t i) -> uint32_t { return static_cast<unsigned char>(text[i]); };
    const uint32_t first = byte(at);
    if (first < 0x80) return {first, 1};
    const size_t left = text.size() - at;
    const auto follows = [&](size_t i) { return i < left && (byte(at + i) & 0xC0) == 0x80; };
    const Character invalid{kCodePoints + first, 1};
    if (first < 0xC2) return invalid;
    if (first < 0xE0) {
        if (!follows(1)) return invalid;
        return {(first & 0x1F) << 6 | (byte(at + 1) & 0x3F), 2};
    }
    if (first < 0xF0) {
        if (!follows(1) || !follows(2)) return invalid;
        const uint32_t code = (first & 0x0F) << 12 | (byte(at + 1) & 0x3F) << 6 | (byte(at + 2) & 0x3F);
        return code < 0x800 || (code >= 0xD800 && code < 0xE000) ? invalid : Character{code, 3};
    }
    if (first > 0xF4 || !follows(1) || !follows(2) || !follows(3)) return invalid;
    const uint32_t code =
        (first & 0x07) << 18 | (byte(at + 1) & 0x3F) << 12 | (byte(at + 2) & 0x3F) << 6 | (byte(at + 3) & 0x3F);
    return code < 0x10000 || code >= kCodePoints ? invalid : Character{code, 4};
}

void append_utf8(uint32_t code, std::string& text) {
    const auto put = [&](uint32_t byte) { text += static_cast<char>(static_cast<unsigned char>(byte)); };
    if (code >= kCodePoints) return put(code - kCodePoints);
    if (code < 0x80) return put(code);
    if (code < 0x800) {
        put(0xC0 | code >> 6);
    } else {
        if (code < 0x10000) {
            put(0xE0 | code >> 12);
        } else {
            put(0xF0 | code >> 18);
            put(0x80 | (code >> 12 & 0x3F));
        }
        put(0x80 | (code >> 6 & 0x3F));
    }
    put(0x80 | (code & 0x3F));
}

CharacterClasses::CharacterClasses() : classes_(kCodePoints + 256) {
    for (const ClassRange& range : class_ranges())
        std::fill(classes_.begin() + range.first, classes_.begin() + range.last + 1, range.classes);
}

size_t character_before(std::string_view text, size_t end) {
    // A character has at most four bytes; the one that ends here begins at the farthest place from which it decodes.
    for (size_t length = std::min<size_t>(4, end); length > 1; --length)
        if (character_at(text.substr(0, end), end - length).length == length) return end - length;
    return end - 1;
}

bool CharacterClasses::ends_with(std::string_view text, size_t end, uint8_t classes) const {
    return end > 0 && (of(character_at(text.substr(0, end), character_before(text, end)).code) & classes) != 0;
}
bool CharacterClasses::begins_with(std::string_view text, size_t begin, uint8_t classes) const {
    return begin < text.size() && (of(character_at(text, begin).code) & classes) != 0;
}

namespace {

// Hangul syllables are composed by arithmetic (Unicode 15, section 3.12, whose names these are).
constexpr uint32_t kSBase = 0xAC00, kLBase = 0x1100, kVBase = 0x1161, kTBase = 0x11A7;
constexpr uint32_t kLCount = 19, kVCount = 21, kTCount = 28, kSCount = kLCount * kVCount * kTCount;

bool is_syllable(uint32_t code) { return code >= kSBase && code < kSBase + kSCount; }

uint64_t key_of(uint32_t first, uint32_t second) { return uint64_t{first} << 32 | second; }

}  // namespace

Nfc::Nfc() : combining_class_(kCodePoints + 256), stands_alone_(kCodePoints + 256, true) {
    for (const CombiningRange& range : combining_ranges())
        for (uint32_t code = range.first; code <= range.last; ++code) {
            combining_class_[code] = range.combining_class;
            stands_alone_[code] = false;
        }
    const std::span<const uint32_t> excluded = composition_exclusions();
    for (const Decomposition& d : tutti::text::decompositions()) {
        decompositions_[d.composed] = d;
        if (d.second == 0 || std::binary_search(excluded.begin(), excluded.end(), d.composed)) {
            stands_alone_[d.composed] = false;
            continue;
        }
        compositions_[key_of(d.first, d.second)] = d.composed;
        stands_alone_[d.second] = false;
    }
    for (uint32_t v = 0; v < kVCount; ++v) stands_alone_[kVBase + v] = false;
    for (uint32_t t = 1; t < kTCount; ++t) stands_alone_[kTBase + t] = false;
}

void Nfc::decompose(uint32_t code, std::vector<uint32_t>& out) const {
    if (is_syllable(code)) {
        const uint32_t s = code - kSBase;
        out.push_back(kLBase + s / (kVCount * kTCount));
        out.push_back(kVBase + s % (kVCount * kTCount) / kTCount);
        if (s % kTCount != 0) out.push_back(kTBase + s % kTCount);
        return;
    }
    const auto found = decompositions_.find(code);
    if (found == decompositions_.end()) return out.push_back(code);
    decompose(found->second.first, out);
    if (found->second.second != 0) decompose(found->second.second, out);
}

uint32_t Nfc::compose(uint32_t first, uint32_t second) const {
    if (first >= kLBase && first < kLBase + kLCount && second >= kVBase && second < kVBase + kVCount)
        return kSBase + ((first - kLBase) * kVCount + second - kVBase) * kTCount;
    if (is_syllable(first) && (first - kSBase) % kTCount == 0 && second > kTBase && second < kTBase + kTCount)
        return first + second - kTBase;
    const auto found = compositions_.find(key_of(first, second));
    return found == compositions_.end() ? 0 : found->second;
}

std::string Nfc::normalize_segment(std::string_view segment) const {
    std::vector<uint32_t> codes;
    for (size_t at = 0; at < segment.size();) {
        const Character c = character_at(segment, at);
        decompose(c.code, codes);
        at += c.length;
    }
    const auto class_of = [this](uint32_t code) { return combining_class_[code]; };
    for (auto begin = codes.begin(); begin != codes.end();) {  // canonical order of each run of marks
        begin = std::find_if(begin, codes.end(), [&](uint32_t code) { return class_of(code) != 0; });
        const auto end = std::find_if(begin, codes.end(), [&](uint32_t code) { return class_of(code) == 0; });
        std::stable_sort(begin, end, [&](uint32_t a, uint32_t b) { return class_of(a) < class_of(b); });
        begin = end;
    }
    // Each character joins the last starter unless one of its own class, or a higher one, stands between them.
    std::vector<uint32_t> composed;
    size_t starter = 0;
    bool has_starter = false;
    int last_class = -1;  // of the last mark after the starter; -1: none
    for (const uint32_t code : codes) {
        const int own = class_of(code);
        if (has_starter && last_class < own) {
            if (const uint32_t joined = compose(composed[starter], code)) {
                composed[starter] = joined;
                continue;
            }
        }
        if (own == 0) {
            starter = composed.size();
            has_starter = true;
            last_class = -1;
        } else {
            last_class = own;
        }
        composed.push_back(code);
    }
    std::string text;
    for (const uint32_t code : composed) append_utf8(code, text);
    return text;
}

std::string_view Nfc::normalize(std::string_view text, std::string& buffer) const {
    buffer.clear();
    size_t copied = 0, alone = 0;  // text before `copied` is in buffer; the last character that stands alone
    for (size_t at = 0; at < text.size();) {
        if (static_cast<unsigned char>(text[at]) < 0x80) {
            alone = at++;
            continue;
        }
        Character c = character_at(text, at);
        if (stands_alone_[c.code]) {
            alone = at;
            at += c.length;
            continue;
        }
        const size_t begin = alone;
        while (at < text.size() && !stands_alone_[(c = character_at(text, at)).code]) at += c.length;
        const std::string_view segment = text.substr(begin, at - begin);
        alone = at;
        std::string changed = normalize_segment(segment);
        if (changed == segment) continue;
        buffer += text.substr(copied, begin - copied);
        buffer += changed;
        copied = at;
    }
    if (copied == 0) return text;
    buffer += text.substr(copied);
    return buffer;
}

}  // namespace tutti::text
