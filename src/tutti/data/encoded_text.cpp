// data/encoded_text.cpp: the pieces of encode_files, put together.
#include "tutti/data/encoded_text.h"

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/data/encode_files.h"

namespace tutti::data {

namespace {

class EncodedText final : public TokenSource {
  public:
    EncodedText(const std::vector<std::string>& paths, std::string_view format, const TextOptions& options)
        : paths_(paths), format_(format) {
        const auto bytes = options.tokenizer ? nullptr : make_tokenizer("bytes");
        const Tokenizer& tokenizer = options.tokenizer ? *options.tokenizer : *bytes;
        const bool records = format == "jsonl";
        const EncodeOptions encode{.format = format_,
                                   .field = options.field,
                                   .separator = "",
                                   .eod = records ? options.eod : std::nullopt,
                                   .affixes = records,
                                   .threads = options.threads};
        encode_files(tokenizer, paths, encode, [this](EncodedPiece&& piece) { append(piece); });
        check<DataError>(!ids_.empty(), paths.front(), ": has no token");
    }

    int64_t size() const override { return static_cast<int64_t>(ids_.size()); }
    int64_t vocab_bound() const override { return int64_t{1} << 31; }
    std::string_view format() const override { return format_; }

    void read(int64_t begin, std::span<int32_t> out) const override { copy(ids_, begin, out); }

    void document_begins(int64_t begin, int64_t end, std::vector<int64_t>& begins) const override {
        const auto first = std::upper_bound(begins_.begin(), begins_.end(), begin);
        begins.insert(begins.end(), first, std::lower_bound(first, begins_.end(), end));
    }
    // A text file may hold many documents with a special token between them.
    bool knows_documents() const override { return format_ == "jsonl"; }

    bool has_mask() const override { return !counted_.empty(); }
    void read_mask(int64_t begin, std::span<uint8_t> out) const override {
        if (has_mask()) return copy(counted_, begin, out);
        std::fill(out.begin(), out.end(), uint8_t{1});
    }

    std::string description() const override {
        return concat(format_, ", ", size(), " tokens", has_mask() ? " with a loss mask" : "", ": ", named());
    }
    std::string where(int64_t token) const override {
        return concat(named(), ", token ", token, " of the encoded text");
    }

  private:
    template <class T>
    static void copy(const std::vector<T>& from, int64_t begin, std::span<T> out) {
        const auto size = static_cast<int64_t>(from.size()), count = static_cast<int64_t>(out.size());
        check(begin >= 0 && begin <= size - count, "tokens [", begin, ", ", begin + count, ") of ", size);
        std::copy_n(from.begin() + begin, count, out.begin());
    }
    void append(const EncodedPiece& piece) {
        for (const int64_t begin : piece.begins) begins_.push_back(size() + begin);
        if (!piece.counted.empty() || !counted_.empty()) {
            counted_.resize(ids_.size(), 1);
            counted_.insert(counted_.end(), piece.counted.begin(), piece.counted.end());
            counted_.resize(ids_.size() + piece.ids.size(), 1);
        }
        ids_.insert(ids_.end(), piece.ids.begin(), piece.ids.end());
    }
    std::string named() const {
        return paths_.size() == 1 ? paths_[0] : concat(paths_[0], " and ", paths_.size() - 1, " more files");
    }

    std::vector<std::string> paths_;
    std::string format_;
    std::vector<int32_t> ids_;
    std::vector<uint8_t> counted_;  // empty: all
    std::vector<int64_t> begins_;
};

}  // namespace

std::shared_ptr<const TokenSource> encode_to_memory(const std::vector<std::string>& paths, std::string_view format,
                                                    const TextOptions& options) {
    return std::make_shared<EncodedText>(paths, format, options);
}

}  // namespace tutti::data
