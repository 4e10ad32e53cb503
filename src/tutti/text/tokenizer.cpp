// text/tokenizer.cpp: the bytes tokenizer, the choice of a tokenizer by name, encoding on many threads, and digests.
#include "tutti/text/tokenizer.h"

#include <xxhash.h>

#include <algorithm>
#include <filesystem>

#include "tutti/base/error.h"
#include "tutti/text/parallel.h"
#include "tutti/text/sentencepiece.h"
#include "tutti/text/tokenizer_json.h"

namespace tutti::text {

namespace {

class BytesEncoder final : public Encoder {
  public:
    void encode(std::string_view text, std::vector<int32_t>& ids) override {
        const size_t before = ids.size();
        ids.resize(before + text.size());  // grows geometrically; reserve() grows to the exact size and would copy all
                                           // ids for each record
        for (size_t i = 0; i < text.size(); ++i) ids[before + i] = static_cast<unsigned char>(text[i]);
    }
};

class BytesTokenizer final : public Tokenizer {
  public:
    int64_t vocab() const override { return 256; }
    std::unique_ptr<Encoder> make_encoder() const override { return std::make_unique<BytesEncoder>(); }

    std::string decode(std::span<const int32_t> ids, ShowSpecial) const override {
        std::string text;
        text.reserve(ids.size());
        for (size_t i = 0; i < ids.size(); ++i) {
            check<DataError>(ids[i] >= 0 && ids[i] < 256, "tokenizer \"bytes\": id ", ids[i], " at position ", i,
                             " is not a byte (0 to 255); a model of a larger vocabulary writes such ids when it was "
                             "trained on ids of another tokenizer, or too little");
            text += static_cast<char>(static_cast<unsigned char>(ids[i]));
        }
        return text;
    }

    std::optional<int32_t> id_of(std::string_view token) const override {
        if (token.size() != 1) return std::nullopt;
        return static_cast<unsigned char>(token[0]);
    }
    size_t safe_cut(std::string_view text, size_t from) const override { return std::min(from, text.size()); }
    uint64_t fingerprint() const override { return kFingerprintOfBytes; }
    std::string description() const override { return "bytes, 256 ids"; }
};

}  // namespace

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
    std::vector<int32_t> ids;
    make_encoder()->encode(text, ids);
    return ids;
}

std::vector<int32_t> encode_text(const Tokenizer& tokenizer, std::string_view text, int threads) {
    constexpr size_t kPiece = 256 << 10;  // small enough for an even division, large enough to amortise the cuts
    std::vector<std::string_view> pieces;
    while (!text.empty()) {
        const size_t cut = text.size() <= kPiece ? text.size() : tokenizer.safe_cut(text, kPiece);
        pieces.push_back(text.substr(0, cut));
        text.remove_prefix(cut);
    }
    std::vector<std::vector<int32_t>> parts(pieces.size());
    for_each_parallel(pieces.size(), threads, [&](size_t) {
        return [&, encoder = tokenizer.make_encoder()](size_t i) {
            i > 0 ? encoder->encode_rest(pieces[i], parts[i]) : encoder->encode(pieces[i], parts[i]);
        };
    });
    size_t total = 0;
    for (const auto& part : parts) total += part.size();
    std::vector<int32_t> ids;
    ids.reserve(total);
    for (const auto& part : parts) ids.insert(ids.end(), part.begin(), part.end());
    return ids;
}

std::string tokenizer_json_of_bytes() {
    ByteLevelModel model;
    for (int byte = 0; byte < 256; ++byte) model.tokens.emplace_back(std::string(1, static_cast<char>(byte)));
    return tokenizer_json(model);
}

std::unique_ptr<const Tokenizer> make_tokenizer(std::string_view name) {
    namespace fs = std::filesystem;
    if (name == "bytes") return std::make_unique<BytesTokenizer>();
    fs::path path(name);
    if (fs::is_directory(path)) {
        const auto inside = [&](const char* file) { return fs::exists(path / file) ? path / file : fs::path(); };
        const fs::path json = inside("tokenizer.json"), model = inside("tokenizer.model");
        check<DataError>(!json.empty() || !model.empty(), "tokenizer \"", name,
                         "\": the directory has neither tokenizer.json nor tokenizer.model");
        const bool use_model = json.empty() || (!model.empty() && is_of_sentencepiece(json.string()));
        path = use_model ? model : json;
    }
    const bool named = path.extension() == ".json" || path.extension() == ".model", there = fs::exists(path);
    if (!named || !there) {
        const std::string problem =
            concat("tokenizer \"", name, "\": ", there ? "" : "there is no such file; ",
                   "required: \"bytes\", a tokenizer.json, a sentencepiece *.model, or a directory with one");
        if (named) throw DataError(problem);
        throw UsageError(problem);
    }
    if (path.extension() == ".model") return open_sentencepiece(path.string());
    check<UsageError>(!is_of_sentencepiece(path.string()), "tokenizer \"", name,
                      "\": is made from a sentencepiece model; name the tokenizer.model of the same directory instead");
    return open_tokenizer_json(path.string());
}

Fingerprint& Fingerprint::add_number(uint64_t number) {
    bytes_.append(reinterpret_cast<const char*>(&number), sizeof number);
    return *this;
}

Fingerprint& Fingerprint::add(std::string_view part) {
    add_number(part.size());
    bytes_ += part;
    return *this;
}

uint64_t Fingerprint::value() const { return digest_of(bytes_); }

uint64_t digest_of(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

}  // namespace tutti::text
