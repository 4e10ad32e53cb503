#include "tutti/text/byte_level.h"

#include <algorithm>
#include <array>
#include <string>

#include "tutti/base/error.h"
#include "tutti/base/strings.h"
#include "tutti/base/to_size.h"

namespace tutti::text {

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

// The length of 's, 't, 're, 've, 'm, 'll or 'd at text[begin], or 0.
size_t contraction(std::string_view text, size_t begin, bool any_case) {
    const std::string_view rest = text.substr(begin + 1, 2);
    if (rest.empty()) return 0;
    const auto letter = [&](size_t i) { return any_case ? lower_case(rest[i]) : rest[i]; };
    const char c = letter(0);
    if (c == 's' || c == 't' || c == 'm' || c == 'd') return 2;
    if (rest.size() < 2) return 0;
    const char d = letter(1);
    if ((c == 'r' && d == 'e') || (c == 'v' && d == 'e') || (c == 'l' && d == 'l')) return 3;
    return any_case && rest == "\u017F" ? 3 : 0;  // the long s is an s of another case
}

int32_t child_of(const std::vector<std::pair<unsigned char, int32_t>>& children, unsigned char byte) {
    for (const auto& [key, node] : children)
        if (key == byte) return node;
    return -1;
}

constexpr uint32_t kLargestByteCharacter = 256 + 68 - 1;

std::array<int, kLargestByteCharacter + 1> bytes_by_character() {
    std::array<int, kLargestByteCharacter + 1> bytes;
    bytes.fill(-1);
    const auto characters = byte_characters();
    for (size_t byte = 0; byte < 256; ++byte) bytes[characters[byte]] = static_cast<int>(byte);
    return bytes;
}

}  // namespace

std::string_view name_of(SplitKind kind) { return kKnown[to_size(kind)].name; }
std::string_view pattern_of(SplitKind kind) { return kKnown[to_size(kind)].pattern; }
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
    const bool letter = lower_case(before) >= 'a' && lower_case(before) <= 'z';
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
    const size_t last = character_before(text, end);  // belongs to the next word
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

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, std::shared_ptr<const CharacterClasses> classes)
    : tokens_(std::move(tokens)), classes_(std::move(classes)), nodes_(1), roots_(256, -1) {
    for (size_t i = 0; i < tokens_.size(); ++i) {
        int32_t node = 0;
        for (const char c : tokens_[i].content) {
            const auto byte = static_cast<unsigned char>(c);
            int32_t next = child_of(nodes_[to_size(node)].children, byte);
            if (next < 0) {
                next = static_cast<int32_t>(nodes_.size());
                nodes_[to_size(node)].children.emplace_back(byte, next);
                nodes_.emplace_back();
            }
            node = next;
        }
        nodes_[to_size(node)].token = static_cast<int32_t>(i);
    }
    for (const auto& [byte, node] : nodes_[0].children) roots_[byte] = node;
}

bool AddedTokens::next(std::string_view text, size_t from, size_t done, Match& match) const {
    for (size_t begin = from; begin < text.size(); ++begin) {
        int32_t node = roots_[static_cast<unsigned char>(text[begin])];
        if (node < 0) continue;
        int32_t longest = nodes_[to_size(node)].token;
        for (size_t at = begin + 1; at < text.size(); ++at) {
            node = child_of(nodes_[to_size(node)].children, static_cast<unsigned char>(text[at]));
            if (node < 0) break;
            if (nodes_[to_size(node)].token >= 0) longest = nodes_[to_size(node)].token;
        }
        if (longest < 0) continue;
        const AddedToken& token = tokens_[to_size(longest)];
        size_t first = begin, last = begin + token.content.size();
        if (token.single_word &&
            (classes_->ends_with(text, first, kWord) || classes_->begins_with(text, last, kWord))) {
            begin = last - 1;  // skipped whole: the search continues after it
            continue;
        }
        match.search_from = last;
        if (token.lstrip) {
            while (classes_->ends_with(text, first, kSpace)) first = character_before(text, first);
            first = std::max(first, done);
        }
        if (token.rstrip)
            while (classes_->begins_with(text, last, kSpace)) last += character_at(text, last).length;
        match.begin = first;
        match.end = last;
        match.id = token.id;
        return true;
    }
    return false;
}

bool AddedTokens::touch_space() const {
    return std::any_of(tokens_.begin(), tokens_.end(), [&](const AddedToken& token) {
        if (token.lstrip || token.rstrip) return true;
        for (size_t at = 0; at < token.content.size(); ++at)
            if (classes_->begins_with(token.content, at, kSpace)) return true;
        return false;
    });
}

class ByteLevelEncoder final : public Encoder {
  public:
    explicit ByteLevelEncoder(const ByteLevelTokenizer& tokenizer) : t_(tokenizer), bpe_(tokenizer.bpe_) {}

    void encode(std::string_view text, std::vector<int32_t>& ids) override {
        const auto push = [&](int32_t id) { ids.push_back(id); };
        t_.raw_added_.split(
            text,
            [&](std::string_view piece) {
                const std::string_view normalized = t_.nfc_ ? t_.nfc_->normalize(piece, normalized_) : piece;
                t_.normalized_added_.split(
                    normalized, [&](std::string_view p) { encode_piece(p, ids); }, push);
            },
            push);
    }

  private:
    void encode_piece(std::string_view piece, std::vector<int32_t>& ids) {
        if (t_.add_prefix_space_ && piece.front() != ' ') {
            prefixed_ = " ";
            prefixed_ += piece;
            piece = prefixed_;
        }
        for (size_t at = 0; at < piece.size();) {
            const size_t end = t_.splitter_.word_end(piece, at);
            bpe_.encode(piece.substr(at, end - at), ids);
            at = end;
        }
    }

    const ByteLevelTokenizer& t_;
    CachedBpe bpe_;
    std::string normalized_, prefixed_;
};

namespace {

std::vector<AddedToken> select(const std::vector<AddedToken>& tokens, bool normalized, const std::optional<Nfc>& nfc) {
    std::vector<AddedToken> selected;
    std::string buffer;
    for (AddedToken token : tokens) {
        if (token.normalized != normalized) continue;
        if (normalized && nfc) token.content = std::string(nfc->normalize(token.content, buffer));
        selected.push_back(std::move(token));
    }
    return selected;
}

// A digest of everything that the ids of a text depend on.
uint64_t fingerprint_of(const ByteLevelModel& m) {
    bool bytes =
        m.tokens.size() == kFingerprintOfBytes && m.merges.empty() && m.added.empty() && !m.nfc && !m.add_prefix_space;
    for (size_t id = 0; bytes && id < m.tokens.size(); ++id)
        bytes = m.tokens[id] == std::string(1, static_cast<char>(static_cast<unsigned char>(id)));
    if (bytes) return kFingerprintOfBytes;
    Fingerprint print;
    print.add("byte-level BPE").add(name_of(m.split)).add(m.nfc).add(m.add_prefix_space).add(m.ignore_merges);
    for (const auto& token : m.tokens) print.add(token.has_value()).add(token.value_or(""));
    for (const Merge& merge : m.merges) print.add(merge.left).add(merge.right).add(merge.joined);
    for (const AddedToken& a : m.added)
        print.add(a.id).add(a.content).add(a.single_word).add(a.lstrip).add(a.rstrip).add(a.normalized);
    return print.value();
}

}  // namespace

ByteLevelTokenizer::ByteLevelTokenizer(ByteLevelModel model, std::string source)
    : ByteLevelTokenizer(std::move(model), std::move(source), std::make_shared<const CharacterClasses>()) {}

ByteLevelTokenizer::ByteLevelTokenizer(ByteLevelModel model, std::string source,
                                       const std::shared_ptr<const CharacterClasses>& classes)
    : source_(std::move(source)),
      bpe_(model.tokens, model.merges, model.ignore_merges),
      splitter_(model.split, classes),
      nfc_(model.nfc ? std::optional<Nfc>(std::in_place) : std::nullopt),
      raw_added_(select(model.added, false, nfc_), classes),
      normalized_added_(select(model.added, true, nfc_), classes),
      texts_(model.tokens),
      add_prefix_space_(model.add_prefix_space),
      can_cut_(!raw_added_.touch_space() && !normalized_added_.touch_space()),
      prefix_(std::move(model.prefix)),
      suffix_(std::move(model.suffix)),
      special_(model.special),
      fingerprint_(fingerprint_of(model)) {
    int32_t largest = static_cast<int32_t>(texts_.size()) - 1;
    for (const AddedToken& token : model.added) largest = std::max(largest, token.id);
    vocab_ = int64_t{largest} + 1;
    texts_.resize(to_size(vocab_));
    is_special_.resize(to_size(vocab_));
    for (const AddedToken& token : model.added) {
        texts_[to_size(token.id)] = token.content;
        is_special_[to_size(token.id)] = token.special;
    }
    for (const AddedToken& token : model.added) added_ids_[*texts_[to_size(token.id)]] = token.id;
}

std::unique_ptr<Encoder> ByteLevelTokenizer::make_encoder() const { return std::make_unique<ByteLevelEncoder>(*this); }

std::string ByteLevelTokenizer::decode(std::span<const int32_t> ids, ShowSpecial special) const {
    std::string text;
    for (size_t i = 0; i < ids.size(); ++i) {
        const auto id = to_size(ids[i]);
        check<DataError>(ids[i] >= 0 && id < texts_.size() && texts_[id].has_value(), source_, ": id ", ids[i],
                         " at position ", i, " is not a token of this tokenizer (it has ", vocab_,
                         " ids); the ids come from another tokenizer");
        if (special == ShowSpecial::yes || !is_special_[id]) text += *texts_[id];
    }
    return text;
}

std::optional<int32_t> ByteLevelTokenizer::id_of(std::string_view token) const {
    const auto found = added_ids_.find(token);
    return found != added_ids_.end() ? std::optional(found->second) : bpe_.id_of(token);
}

size_t ByteLevelTokenizer::safe_cut(std::string_view text, size_t from) const {
    if (!can_cut_) return text.size();
    for (size_t at = std::max<size_t>(from, 1); at < text.size(); ++at)
        if (splitter_.is_cut(text, at) && (!add_prefix_space_ || text[at] == ' ')) return at;
    return text.size();
}

std::string ByteLevelTokenizer::description() const {
    return concat("byte-level BPE (", name_of(splitter_.kind()), "), ", vocab_, " ids: ", source_);
}

std::array<uint32_t, 256> byte_characters() {
    std::array<uint32_t, 256> characters{};
    uint32_t others = 256;
    for (uint32_t byte = 0; byte < 256; ++byte) {
        const bool itself = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
        characters[byte] = itself ? byte : others++;
    }
    return characters;
}

std::optional<std::string> bytes_of_token(std::string_view token) {
    static const auto kBytes = bytes_by_character();
    std::string bytes;
    for (size_t at = 0; at < token.size();) {
        const Character c = character_at(token, at);
        if (c.code > kLargestByteCharacter || kBytes[c.code] < 0) return std::nullopt;
        bytes += static_cast<char>(static_cast<unsigned char>(kBytes[c.code]));
        at += c.length;
    }
    return bytes;
}

std::string token_of_bytes(std::string_view bytes) {
    static const auto kCharacters = byte_characters();
    std::string token;
    for (const char c : bytes) append_utf8(kCharacters[static_cast<unsigned char>(c)], token);
    return token;
}

}  // namespace tutti::text
