#include "tutti/data/tokenizers/sentencepiece.h"

#include "tutti/base/error.h"
#include "tutti/base/read_file.h"
#include "tutti/data/tokenizer.h"
#include "tutti/data/tokenizers/tokenizer_json.h"
#include "tutti/data/tokenizers/unicode.h"

namespace tutti::data {

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

class SentencepieceEncoder final : public Encoder {
  public:
    SentencepieceEncoder(const Processor& processor, const std::string& path) : processor_(processor), path_(path) {}

    void encode(std::string_view text, std::vector<int32_t>& ids) override {
        // The library silently replaces bytes that are not UTF-8 by U+FFFD.
        for (size_t at = 0; at < text.size();) {
            const Character c = character_at(text, at);
            check<DataError>(c.code < kCodePoints, path_, ": sentencepiece reads UTF-8 only; byte offset ", at,
                             " of the text begins no character");
            at += c.length;
        }
        const std::vector<int> made = processor_.encode(text);
        ids.insert(ids.end(), made.begin(), made.end());
    }

  private:
    const Processor& processor_;
    const std::string& path_;
};

class SentencepieceTokenizer final : public Tokenizer {
  public:
    SentencepieceTokenizer(const SentencepieceApi& api, const std::string& path, const std::string& model)
        : path_(path), processor_(api, path, model) {
        fingerprint_ = Fingerprint().add("sentencepiece").add(model).value();
        // Most models put a space before the text and take it away when decoding; the library does not tell which
        // models do.
        const std::vector<int> ids = processor_.encode("a");
        const std::string text = processor_.decode(ids);
        find_special_ids();
        strips_space_ = !ids.empty() && piece(ids.front(), ShowSpecial::yes).starts_with(' ') && !text.starts_with(' ');
    }

    int64_t vocab() const override { return processor_.size(); }
    std::unique_ptr<Encoder> make_encoder() const override {
        return std::make_unique<SentencepieceEncoder>(processor_, path_);
    }

    std::string piece(int32_t id, ShowSpecial special) const override {
        check<DataError>(id >= 0 && id < vocab(), path_, ": id ", id, " is not a token of this tokenizer (it has ",
                         vocab(), " ids); the ids come from another tokenizer");
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

    std::string decode(std::span<const int32_t> ids, ShowSpecial special) const override {
        std::string text;
        bool at_begin = strips_space_;
        for (const int32_t id : ids) {
            std::string next = piece(id, special);
            const bool control = processor_.is_control(id);
            if (at_begin && !control && next.starts_with(' ')) next.erase(0, 1);
            at_begin = at_begin && control;
            text += next;
        }
        return text;
    }

    std::optional<int32_t> id_of(std::string_view token) const override {
        std::string stored;
        for (const char c : token) c == ' ' ? stored += kSpaceSymbol : stored += c;
        const int id = processor_.id_of(stored);
        if (processor_.is_unknown(id) && processor_.piece(id) != stored) return std::nullopt;
        return id;
    }

    SpecialIds special() const override { return special_; }
    std::vector<int32_t> prefix() const override { return prefix_; }
    size_t safe_cut(std::string_view text, size_t) const override { return text.size(); }  // a text is one sentence
    uint64_t fingerprint() const override { return fingerprint_; }
    std::string file() const override { return path_; }
    std::string description() const override { return concat("sentencepiece, ", vocab(), " ids: ", path_); }

  private:
    // The special ids of the model, unless the files beside the model name others.
    void find_special_ids() {
        const auto known = [](int id) { return id >= 0 ? std::optional<int32_t>(id) : std::nullopt; };
        special_ = special_ids_beside(path_, [&](const std::string& text) { return id_of(text); });
        if (!special_.bos) special_.bos = known(processor_.bos());
        if (!special_.eos) special_.eos = known(processor_.eos());
        if (!special_.pad) special_.pad = known(processor_.pad());
        if (special_.stop.empty() && special_.eos) special_.stop = {*special_.eos};
        if (!asks_for_bos(path_)) return;
        check<DataError>(special_.bos.has_value(), path_, ": tokenizer_config.json asks for a bos token in front of ",
                         "each text (add_bos_token), but the model has none");
        prefix_ = {*special_.bos};
    }

    std::string path_;
    Processor processor_;
    bool strips_space_ = false;
    SpecialIds special_;
    std::vector<int32_t> prefix_;
    uint64_t fingerprint_ = 0;
};

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

}  // namespace tutti::data
