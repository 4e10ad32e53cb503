#include "tutti/text/sentencepiece.h"

#include <algorithm>
#include <filesystem>
#include <unordered_map>

#include "tutti/base/error.h"
#include "tutti/base/read_file.h"
#include "tutti/text/bpe.h"
#include "tutti/text/byte_level.h"
#include "tutti/text/files_beside.h"
#include "tutti/text/flat_map.h"
#include "tutti/text/tokenizer.h"
#include "tutti/text/unicode.h"

namespace tutti::text {

namespace {

constexpr std::string_view kSpaceSymbol = "\u2581";

SentencepieceText into(std::string& text) {
    return {&text,
            [](void* object, const char* more, size_t size) { static_cast<std::string*>(object)->append(more, size); }};
}

SentencepieceIds into(std::vector<int>& ids) {
    return {&ids, [](void* object, const int* more, size_t count) {
                auto& all = *static_cast<std::vector<int>*>(object);
                all.insert(all.end(), more, more + count);
            }};
}

// A model that the library has read.
class Processor {
  public:
    Processor(const SentencepieceApi& api, const std::string& path, const std::string& model) : api_(api), path_(path) {
        std::string problem;
        handle_ = api.open(model.data(), model.size(), into(problem));
        check<DataError>(handle_ != nullptr && size() > 0, path, ": is not a sentencepiece model: ", problem);
    }
    ~Processor() { api_.close(handle_); }
    Processor(const Processor&) = delete;
    Processor& operator=(const Processor&) = delete;

    std::vector<int> encode(std::string_view text) const {
        std::vector<int> ids;
        std::string problem;
        const bool well = api_.encode(handle_, text.data(), text.size(), into(ids), into(problem));
        check<DataError>(well, path_, ": cannot encode: ", problem);
        return ids;
    }
    std::string decode(const std::vector<int>& ids) const {
        std::string text, problem;
        const bool well = api_.decode(handle_, ids.data(), ids.size(), into(text), into(problem));
        check<DataError>(well, path_, ": cannot decode: ", problem);
        return text;
    }
    int size() const { return api_.size(handle_); }
    std::string_view piece(int id) const {
        size_t size = 0;
        const char* text = api_.piece(handle_, id, &size);
        return {text, size};
    }
    int id_of(std::string_view piece) const { return api_.id_of(handle_, piece.data(), piece.size()); }
    bool is_control(int id) const { return api_.is_control(handle_, id); }
    bool is_unknown(int id) const { return api_.is_unknown(handle_, id); }
    bool is_byte(int id) const { return api_.is_byte(handle_, id); }
    int bos() const { return api_.bos(handle_); }
    int eos() const { return api_.eos(handle_); }
    int pad() const { return api_.pad(handle_); }

  private:
    const SentencepieceApi& api_;
    const std::string path_;
    void* handle_ = nullptr;
};

// The fields of a model (sentencepiece_model.proto) that say how a text is normalized before it is cut into pieces.
struct Normalization {
    bool dummy_prefix = true;         // a space before the text
    bool remove_extra_spaces = true;  // at both ends, and all but one of a run
    bool spaces_as_symbol = true;     // a space is kSpaceSymbol in pieces
    bool prefix_as_suffix = false;    // the dummy space stands behind the text
    bool has_rules = false;           // characters are replaced (NFKC)
};

uint64_t read_varint(std::string_view& bytes) {
    uint64_t value = 0;
    for (int shift = 0; !bytes.empty() && shift < 64; shift += 7) {
        const auto byte = static_cast<unsigned char>(bytes.front());
        bytes.remove_prefix(1);
        value |= uint64_t{byte & 0x7fu} << shift;
        if (byte < 0x80) break;
    }
    return value;
}

// Calls visit(field, number, bytes) for each field of a protobuf message: `number` of a varint, else `bytes`.
template <class Visit>
void visit_fields(std::string_view message, const Visit& visit) {
    while (!message.empty()) {
        const uint64_t tag = read_varint(message);
        const auto take = [&](uint64_t size) {
            const std::string_view bytes = message.substr(0, size);
            message.remove_prefix(bytes.size());
            return bytes;
        };
        switch (tag & 7) {
            case 0: visit(tag >> 3, read_varint(message), std::string_view()); break;
            case 1: visit(tag >> 3, 0, take(8)); break;
            case 2: visit(tag >> 3, 0, take(read_varint(message))); break;
            case 5: visit(tag >> 3, 0, take(4)); break;
            default: return;  // the library has refused a damaged model before
        }
    }
}

Normalization normalization_of(std::string_view model) {
    constexpr uint64_t kTrainer = 2, kNormalizer = 3, kAsSuffix = 24;
    Normalization n;
    visit_fields(model, [&](uint64_t part, uint64_t, std::string_view message) {
        visit_fields(part == kTrainer || part == kNormalizer ? message : std::string_view(),
                     [&](uint64_t field, uint64_t number, std::string_view bytes) {
                         if (part == kTrainer && field == kAsSuffix) n.prefix_as_suffix = number != 0;
                         if (part != kNormalizer) return;
                         if (field == 2) n.has_rules = !bytes.empty();
                         if (field == 3) n.dummy_prefix = number != 0;
                         if (field == 4) n.remove_extra_spaces = number != 0;
                         if (field == 5) n.spaces_as_symbol = number != 0;
                     });
    });
    return n;
}

// The model with normalizer_spec { add_dummy_prefix: on } appended: protobuf merges repeated messages, and the last
// value of a field counts.
std::string with_dummy_prefix(const std::string& model, bool on) {
    return model + std::string({0x1a, 0x02, 0x18, static_cast<char>(on)});
}

// Places at which a text can be cut so that the ids of both parts together are the ids of the whole: no piece contains
// the two characters beside the place in a row, and normalization does not look across it. Texts are cut because the
// library takes a text as one sentence and needs 80 bytes of memory for each of its bytes.
class Cuts {
  public:
    Cuts(const Processor& processor, const Normalization& how, const std::vector<AddedToken>& added) : how_(how) {
        possible_ = how.spaces_as_symbol && !how.prefix_as_suffix;
        for (const AddedToken& token : added) {
            possible_ = possible_ && !token.lstrip && !token.rstrip && !token.single_word;
            learn(token.content);
        }
        for (int id = 0; id < processor.size(); ++id) {
            if (processor.is_byte(id)) unknown_alone_ = false;
            if (!processor.is_byte(id) && !processor.is_control(id)) learn(processor.piece(id));
        }
    }

    // Whether the text may be cut at `at`, which is inside the text and begins a character.
    bool at(std::string_view text, size_t at) const {
        if (!possible_) return false;
        const Character before = character_at(text, character_before(text, at)), after = character_at(text, at);
        if (how_.has_rules || how_.remove_extra_spaces) {
            // The rest is encoded like a text of its own, whose first spaces become one: a word of ASCII begins there,
            // to which no rule of normalization reaches.
            if (after.code != ' ' || !is_graphic(before.code)) return false;
            const size_t word = text.find_first_not_of(' ', at);
            if (word == std::string_view::npos || !is_graphic(static_cast<unsigned char>(text[word]))) return false;
            if (pairs_.find(pair_of(lower(before.code), kSpaceCode)) != nullptr) return false;
        }
        // Neighbours that are both unknown become one token.
        const uint32_t left = before.code == ' ' ? kSpaceCode : before.code;
        const uint32_t right = after.code == ' ' ? kSpaceCode : after.code;
        if (unknown_alone_ && characters_.find(left) == nullptr && characters_.find(right) == nullptr) return false;
        return pairs_.find(pair_of(left, right)) == nullptr;
    }

    // The end of the word that begins at `begin`: words end before spaces and behind lines, longer ones anywhere.
    size_t word_end(std::string_view text, size_t begin) const {
        constexpr size_t kLong = 64;  // bytes
        size_t i = begin + 1;
        for (; i < text.size(); ++i) {
            const bool usual = (text[i] == ' ' && text[i - 1] != ' ') || (text[i - 1] == '\n' && text[i] != '\n');
            if (!usual && (i - begin < kLong || (text[i] & 0xc0) == 0x80)) continue;
            if (at(text, i)) break;
        }
        return i;
    }
    size_t first_from(std::string_view text, size_t from) const {
        size_t i = std::max<size_t>(from, 1);
        while (i < text.size() && ((text[i] & 0xc0) == 0x80 || !at(text, i))) ++i;
        return std::min(i, text.size());
    }

  private:
    static constexpr uint32_t kSpaceCode = 0x2581;
    static uint64_t pair_of(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }
    static bool is_graphic(uint32_t code) { return code > ' ' && code < 0x7f; }
    static uint32_t lower(uint32_t code) { return code >= 'A' && code <= 'Z' ? code - 'A' + 'a' : code; }

    void learn(std::string_view piece) {
        uint32_t last = 0;
        size_t at = 0;
        for (int count = 0; at < piece.size(); ++count) {
            const Character c = character_at(piece, at);
            const uint32_t code = c.code == ' ' ? kSpaceCode : c.code;
            if (count > 0) pairs_[pair_of(last, code)] = 1;
            last = code;
            at += c.length;
            if (count == 0 && at == piece.size()) characters_[code] = 1;
        }
    }

    Normalization how_;
    bool possible_ = true;
    bool unknown_alone_ = true;    // a character without a piece is unknown; else it becomes its bytes
    FlatMap<uint8_t> pairs_;       // neighbours in a piece
    FlatMap<uint8_t> characters_;  // that are pieces
};

class SentencepieceTokenizer final : public Tokenizer {
  public:
    SentencepieceTokenizer(const SentencepieceApi& api, const std::string& path, const std::string& model)
        : path_(path), processor_(api, path, model) {
        // Most models put a space before the text and take it away when decoding; the library does not tell which
        // models do.
        const std::vector<int> ids = processor_.encode("a");
        const std::string text = processor_.decode(ids);
        strips_space_ = !ids.empty() && shown(ids.front()).starts_with(' ') && !text.starts_with(' ');

        const FilesBeside beside(path);
        beside.add_tokens(
            added_, [&](const std::string& token) { return id_of(token); }, processor_.size());
        for (size_t i = 0; i < added_.size(); ++i) added_ids_[added_[i].id] = i;
        find_special_ids(beside);
        // LlamaTokenizer's "legacy" puts the space before each text between added tokens, as other classes do; without
        // it only before the first.
        const std::string kind = beside.tokenizer_class();
        const bool general = kind.empty() || kind == "PreTrainedTokenizerFast" || kind == "TokenizersBackend";
        space_everywhere_ = beside.flag("legacy").value_or(general);
        const bool no_space = beside.flag("add_prefix_space") == false;
        strips_space_ = strips_space_ && !no_space;

        const Normalization how = normalization_of(model);
        cuts_.emplace(processor_, how, added_);
        split_.emplace(added_, std::make_shared<const CharacterClasses>());
        other_.emplace(api, path, with_dummy_prefix(model, !how.dummy_prefix));
        const Processor &with = how.dummy_prefix ? processor_ : *other_,
                        &without = how.dummy_prefix ? *other_ : processor_;
        first_ = no_space ? &without : &processor_;
        rest_ = &without;
        after_cut_ = how.remove_extra_spaces ? &with : &without;
        Fingerprint print;
        print.add("sentencepiece").add(model).add(space_everywhere_).add(no_space);
        for (const AddedToken& a : added_)
            print.add(a.id).add(a.content).add(a.single_word).add(a.lstrip).add(a.rstrip);
        fingerprint_ = print.value();
    }

    int64_t vocab() const override {
        int64_t largest = processor_.size() - 1;
        for (const AddedToken& token : added_) largest = std::max<int64_t>(largest, token.id);
        return largest + 1;
    }
    std::unique_ptr<Encoder> make_encoder() const override;

    std::string piece(int32_t id, ShowSpecial special) const override {
        check<DataError>(id >= 0 && id < vocab(), path_, ": id ", id, " is not a token of this tokenizer (it has ",
                         vocab(), " ids); the ids come from another tokenizer");
        if (const AddedToken* added = added_token(id))
            return special == ShowSpecial::yes || !added->special ? added->content : "";
        return shown(id, special);
    }

    std::string decode(std::span<const int32_t> ids, ShowSpecial special) const override {
        std::string text;
        bool at_begin = strips_space_;
        for (const int32_t id : ids) {
            std::string next = piece(id, special);
            const bool control = id < processor_.size() && processor_.is_control(id);
            const bool added = added_token(id) != nullptr;
            if (at_begin && !control && !added && next.starts_with(' ')) next.erase(0, 1);
            at_begin = (at_begin && control) || (strips_space_ && space_everywhere_ && added);
            text += next;
        }
        return text;
    }

    std::optional<int32_t> id_of(std::string_view token) const override {
        for (const AddedToken& added : added_)
            if (added.content == token) return added.id;
        std::string stored;
        for (const char c : token) c == ' ' ? stored += kSpaceSymbol : stored += c;
        const int id = processor_.id_of(stored);
        if (processor_.is_unknown(id) && processor_.piece(id) != stored) return std::nullopt;
        return id;
    }

    SpecialIds special() const override { return special_; }
    std::vector<int32_t> prefix() const override { return prefix_; }
    std::vector<int32_t> suffix() const override { return suffix_; }
    size_t safe_cut(std::string_view text, size_t from) const override { return cuts_->first_from(text, from); }
    uint64_t fingerprint() const override { return fingerprint_; }
    std::string file() const override { return path_; }
    std::string description() const override {
        const bool in_place = std::filesystem::exists(std::filesystem::path(path_).parent_path() / "tokenizer.json");
        return concat("sentencepiece, ", vocab(), " ids: ", path_,
                      in_place ? ", in place of the tokenizer.json beside it" : "");
    }

  private:
    friend class SentencepieceEncoder;

    const AddedToken* added_token(int32_t id) const {
        const auto found = added_ids_.find(id);
        return found != added_ids_.end() ? &added_[found->second] : nullptr;
    }
    // The text of a piece of the model.
    std::string shown(int id, ShowSpecial special = ShowSpecial::yes) const {
        if (processor_.is_control(id)) return std::string(special == ShowSpecial::yes ? processor_.piece(id) : "");
        if (processor_.is_unknown(id)) return " \u2047 ";  // as the library shows it
        const std::string stored(processor_.piece(id));
        if (processor_.is_byte(id))  // "<0x0A>"
            return std::string(
                1, static_cast<char>(static_cast<unsigned char>(std::stoi(stored.substr(3, 2), nullptr, 16))));
        std::string text;
        for (size_t at = 0; at < stored.size();) {
            const size_t space = std::min(stored.find(kSpaceSymbol, at), stored.size());
            text += stored.substr(at, space - at);
            if (space < stored.size()) text += ' ';
            at = space + kSpaceSymbol.size();
        }
        return text;
    }

    // The special ids of the model, unless the files beside the model name others.
    void find_special_ids(const FilesBeside& beside) {
        const auto known = [](int id) { return id >= 0 ? std::optional<int32_t>(id) : std::nullopt; };
        special_ = beside.special_ids([&](const std::string& text) { return id_of(text); });
        if (!special_.bos) special_.bos = known(processor_.bos());
        if (!special_.eos) special_.eos = known(processor_.eos());
        if (!special_.pad) special_.pad = known(processor_.pad());
        if (special_.stop.empty() && special_.eos) special_.stop = {*special_.eos};
        const auto around = [&](const char* flag, const std::optional<int32_t>& id, const char* name) {
            if (beside.flag(flag) != true) return std::vector<int32_t>{};
            check<DataError>(id.has_value(), path_, ": tokenizer_config.json asks for ", name,
                             " token around each text (", flag, "), but the model has none");
            return std::vector<int32_t>{*id};
        };
        prefix_ = around("add_bos_token", special_.bos, "a bos");
        suffix_ = around("add_eos_token", special_.eos, "an eos");
    }

    std::string path_;
    Processor processor_;
    std::optional<Processor> other_;  // the same with, or without, a dummy space before a text
    // Processors for the beginning of a text, for text behind an added token, and for text behind a cut.
    const Processor *first_ = nullptr, *rest_ = nullptr, *after_cut_ = nullptr;
    std::optional<Cuts> cuts_;
    std::vector<AddedToken> added_;
    std::unordered_map<int32_t, size_t> added_ids_;
    std::optional<AddedTokens> split_;
    bool strips_space_ = false, space_everywhere_ = false;
    SpecialIds special_;
    std::vector<int32_t> prefix_, suffix_;
    uint64_t fingerprint_ = 0;
};

class SentencepieceEncoder final : public Encoder {
  public:
    explicit SentencepieceEncoder(const SentencepieceTokenizer& tokenizer) : t_(tokenizer) {}

    void encode(std::string_view text, std::vector<int32_t>& ids) override { encode(text, *t_.first_, ids); }
    void encode_rest(std::string_view text, std::vector<int32_t>& ids) override { encode(text, *t_.after_cut_, ids); }

  private:
    // `begin` encodes what comes before the first added token.
    void encode(std::string_view text, const Processor& begin, std::vector<int32_t>& ids) {
        // The library silently replaces bytes that are not UTF-8 by U+FFFD.
        for (size_t at = 0; at < text.size();) {
            const Character c = character_at(text, at);
            check<DataError>(c.code < kCodePoints, t_.path_, ": sentencepiece reads UTF-8 only; byte offset ", at,
                             " of the text begins no character");
            at += c.length;
        }
        const Processor* next = &begin;
        t_.split_->split(
            text, [&](std::string_view piece) { encode_words(piece, *next, ids); },
            [&](int32_t id) {
                ids.push_back(id);
                next = t_.space_everywhere_ ? t_.first_ : t_.rest_;
            });
    }

    void encode_words(std::string_view text, const Processor& begin, std::vector<int32_t>& ids) {
        const auto append = [&ids](const std::vector<int>& made) { ids.insert(ids.end(), made.begin(), made.end()); };
        size_t at = t_.cuts_->word_end(text, 0);
        append(begin.encode(text.substr(0, at)));
        const auto encode_word = [&](std::string_view word, std::vector<int32_t>&) {
            append(t_.after_cut_->encode(word));
        };
        while (at < text.size()) {
            const size_t end = t_.cuts_->word_end(text, at);
            words_.encode(text.substr(at, end - at), ids, encode_word);
            at = end;
        }
    }

    const SentencepieceTokenizer& t_;
    WordCache words_;
};

std::unique_ptr<Encoder> SentencepieceTokenizer::make_encoder() const {
    return std::make_unique<SentencepieceEncoder>(*this);
}

}  // namespace

std::string sentencepiece_version() {
    std::string problem;
    const SentencepieceApi* api = sentencepiece_api(problem);
    return api == nullptr ? "" : api->version;
}

std::unique_ptr<const Tokenizer> open_sentencepiece(const std::string& path) {
    std::string problem;
    const SentencepieceApi* api = sentencepiece_api(problem);
    check<UsageError>(api != nullptr, path, ": ", problem);
    return std::make_unique<SentencepieceTokenizer>(*api, path, read_file(path));
}

}  // namespace tutti::text
