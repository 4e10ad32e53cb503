// data/tokenizers/sentencepiece.cpp: the one file that includes the library (docs/decisions/0010-tokenizers.md).
#include "tutti/data/tokenizers/sentencepiece.h"

#include <sentencepiece_processor.h>

#include "tutti/base/error.h"
#include "tutti/base/read_file.h"
#include "tutti/data/tokenizer.h"
#include "tutti/data/tokenizers/tokenizer_json.h"
#include "tutti/data/tokenizers/unicode.h"

namespace tutti::data {

namespace {

constexpr std::string_view kSpaceSymbol = "\u2581";

class SentencepieceEncoder final : public Encoder {
  public:
    SentencepieceEncoder(const sentencepiece::SentencePieceProcessor& processor, const std::string& path)
        : processor_(processor), path_(path) {}

    void encode(std::string_view text, std::vector<int32_t>& ids) override {
        // The library would put U+FFFD in place of what is not UTF-8 and say nothing.
        for (size_t at = 0; at < text.size();) {
            const Character c = character_at(text, at);
            check<DataError>(c.code < kCodePoints, path_, ": sentencepiece reads UTF-8 only; byte offset ", at,
                             " of the text begins no character");
            at += c.length;
        }
        std::vector<int> made;
        const auto status = processor_.Encode({text.data(), text.size()}, &made);
        check<DataError>(status.ok(), path_, ": cannot encode: ", status.ToString());
        ids.insert(ids.end(), made.begin(), made.end());
    }

  private:
    const sentencepiece::SentencePieceProcessor& processor_;
    const std::string& path_;
};

class SentencepieceTokenizer final : public Tokenizer {
  public:
    explicit SentencepieceTokenizer(const std::string& path) : path_(path) {
        const std::string model = read_file(path);
        const auto status = processor_.LoadFromSerializedProto(model);
        check<DataError>(status.ok() && processor_.GetPieceSize() > 0, path,
                         ": is no sentencepiece model: ", status.ToString());
        fingerprint_ = Fingerprint().add("sentencepiece").add(model).value();
        // Most models put a space before the text and take it away when decoding; the library does not say which do.
        std::vector<int> ids;
        std::string text;
        check<DataError>(processor_.Encode("a", &ids).ok() && processor_.Decode(ids, &text).ok(), path,
                         ": cannot encode \"a\"");
        find_special_ids();
        strips_space_ = !ids.empty() && piece(ids.front(), ShowSpecial::yes).starts_with(' ') && !text.starts_with(' ');
    }

    int64_t vocab() const override { return processor_.GetPieceSize(); }
    std::unique_ptr<Encoder> make_encoder() const override {
        return std::make_unique<SentencepieceEncoder>(processor_, path_);
    }

    std::string piece(int32_t id, ShowSpecial special) const override {
        check<DataError>(id >= 0 && id < vocab(), path_, ": id ", id, " is no token of this tokenizer (it has ",
                         vocab(), " ids); the ids come from another one");
        if (processor_.IsControl(id)) return special == ShowSpecial::yes ? processor_.IdToPiece(id) : "";
        if (processor_.IsUnknown(id)) return " \u2047 ";  // as the library shows it
        const std::string& stored = processor_.IdToPiece(id);
        if (processor_.IsByte(id))  // "<0x0A>"
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
            const bool control = processor_.IsControl(id);
            if (at_begin && !control && next.starts_with(' ')) next.erase(0, 1);
            at_begin = at_begin && control;
            text += next;
        }
        return text;
    }

    std::optional<int32_t> id_of(std::string_view token) const override {
        std::string stored;
        for (const char c : token) c == ' ' ? stored += kSpaceSymbol : stored += c;
        const int id = processor_.PieceToId({stored.data(), stored.size()});
        if (processor_.IsUnknown(id) && processor_.IdToPiece(id) != stored) return std::nullopt;
        return id;
    }

    SpecialIds special() const override { return special_; }
    std::vector<int32_t> prefix() const override { return prefix_; }
    size_t safe_cut(std::string_view text, size_t) const override { return text.size(); }  // a text is one sentence
    uint64_t fingerprint() const override { return fingerprint_; }
    std::string file() const override { return path_; }
    std::string description() const override { return concat("sentencepiece, ", vocab(), " ids: ", path_); }

  private:
    // Those of the model, unless the files beside it name others.
    void find_special_ids() {
        const auto known = [](int id) { return id >= 0 ? std::optional<int32_t>(id) : std::nullopt; };
        special_ = special_ids_beside(path_, [&](const std::string& text) { return id_of(text); });
        if (!special_.bos) special_.bos = known(processor_.bos_id());
        if (!special_.eos) special_.eos = known(processor_.eos_id());
        if (!special_.pad) special_.pad = known(processor_.pad_id());
        if (special_.stop.empty() && special_.eos) special_.stop = {*special_.eos};
        if (!asks_for_bos(path_)) return;
        check<DataError>(special_.bos.has_value(), path_, ": tokenizer_config.json asks for a bos token in front of ",
                         "each text (add_bos_token), but the model has none");
        prefix_ = {*special_.bos};
    }

    std::string path_;
    sentencepiece::SentencePieceProcessor processor_;
    bool strips_space_ = false;
    SpecialIds special_;
    std::vector<int32_t> prefix_;
    uint64_t fingerprint_ = 0;
};

}  // namespace

std::string sentencepiece_version() { return TUTTI_SENTENCEPIECE_VERSION; }

std::unique_ptr<const Tokenizer> open_sentencepiece(const std::string& path) {
    return std::make_unique<SentencepieceTokenizer>(path);
}

}  // namespace tutti::data
