// text/tokenizer.h: text to token ids and back. make_tokenizer() opens a tokenizer by name.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::text {

// Encodes texts on one thread at a time. An encoder caches merged words, so use one for many texts. It must not outlive
// its Tokenizer.
class Encoder {
  public:
    virtual ~Encoder() = default;
    // Appends the ids of `text`. Special tokens in the text become their ids, as in the `tokenizers` package. Bytes
    // that are not UTF-8 are encoded as they are where the tokenizer has all bytes, else DataError.
    virtual void encode(std::string_view text, std::vector<int32_t>& ids) = 0;
    // The same for the rest of a text that was cut at Tokenizer::safe_cut().
    virtual void encode_rest(std::string_view text, std::vector<int32_t>& ids) { encode(text, ids); }
};

// Ids of tokens with a meaning for the model, where the tokenizer's files name them.
struct SpecialIds {
    std::optional<int32_t> bos, eos, pad;
    std::vector<int32_t> stop;  // all that end a text
};

enum class ShowSpecial { yes, no };

// Const and safe to share between threads.
class Tokenizer {
  public:
    virtual ~Tokenizer() = default;

    virtual int64_t vocab() const = 0;  // ids are in [0, vocab)
    virtual std::unique_ptr<Encoder> make_encoder() const = 0;

    // The text of the ids, byte for byte. Special tokens appear as their text, or not at all. DataError for an id that
    // the tokenizer does not have.
    virtual std::string decode(std::span<const int32_t> ids, ShowSpecial special = ShowSpecial::yes) const = 0;
    // The bytes that an id adds inside a text, to show tokens as they are generated; possibly a part of a character.
    // Differs from decode() where a tokenizer treats the beginning of a text differently (sentencepiece).
    virtual std::string piece(int32_t id, ShowSpecial special = ShowSpecial::yes) const {
        return decode({&id, 1}, special);
    }

    virtual std::optional<int32_t> id_of(std::string_view token) const = 0;  // by the text of the whole token
    virtual SpecialIds special() const { return {}; }
    // The ids that the tokenizer's files put before and after a text for the model, such as a bos token.
    virtual std::vector<int32_t> prefix() const { return {}; }
    virtual std::vector<int32_t> suffix() const { return {}; }

    // The first index at or after `from` at which the text can be cut so that the ids of both parts together are the
    // ids of the whole text; text.size() when there is none.
    virtual size_t safe_cut(std::string_view text, size_t from) const = 0;

    virtual uint64_t fingerprint() const = 0;        // equal for equal ids of every text
    virtual std::string file() const { return ""; }  // from which the tokenizer was read
    virtual std::string description() const = 0;     // "byte-level BPE (gpt2), 50257 ids: gpt2/tokenizer.json"

    std::vector<int32_t> encode(std::string_view text) const;
};

// `name` is "bytes" (id = byte value, vocab 256), the path of a Hugging Face tokenizer.json, of a sentencepiece
// *.model, or of a directory with one of them. UsageError when there is no such tokenizer, DataError when its file is
// damaged or asks for an unsupported option that would change ids.
std::unique_ptr<const Tokenizer> make_tokenizer(std::string_view name);

// fingerprint() of a tokenizer whose ids are the bytes of a text.
constexpr uint64_t kFingerprintOfBytes = 256;

// A tokenizer.json whose ids are the bytes of a text, for programs that have no tokenizer "bytes".
std::string tokenizer_json_of_bytes();

// The ids of one long text, cut at safe places and encoded on `threads` threads (0: all cores).
std::vector<int32_t> encode_text(const Tokenizer& tokenizer, std::string_view text, int threads);

// 64-bit digest of a list of parts, such as those of a tokenizer.
class Fingerprint {
  public:
    Fingerprint& add(std::string_view part);  // with its length: "ab", "c" differ from "a", "bc"
    Fingerprint& add(const char* part) { return add(std::string_view(part)); }
    Fingerprint& add(std::integral auto number) { return add_number(static_cast<uint64_t>(number)); }
    uint64_t value() const;

  private:
    Fingerprint& add_number(uint64_t number);
    std::string bytes_;
};

uint64_t digest_of(std::string_view bytes);  // XXH3

}  // namespace tutti::text
