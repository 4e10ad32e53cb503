// data/jsonl.cpp: the pieces of encode_files, put together.
#include "tutti/data/jsonl.h"

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/data/encode_files.h"

namespace tutti::data {

namespace {

class Records final : public TokenSource {
  public:
    Records(const std::vector<std::string>& paths, const Tokenizer& tokenizer, const RecordOptions& options)
        : paths_(paths), vocab_(tokenizer.vocab()) {
        const FileEncoding encoding{.format = "jsonl",
                                    .field = options.field,
                                    .separator = "",
                                    .eod = options.eod,
                                    .affixes = true,
                                    .threads = options.threads};
        encode_files(tokenizer, paths, encoding, [this](EncodedPiece&& piece) { append(piece); });
        check<DataError>(!ids_.empty(), paths.front(), ": has no token");
        if (options.eod) vocab_ = std::max<int64_t>(vocab_, *options.eod + 1);
    }

    int64_t size() const override { return static_cast<int64_t>(ids_.size()); }
    int64_t vocab_bound() const override { return vocab_; }
    std::string_view format() const override { return "jsonl"; }

    void read(int64_t begin, std::span<int32_t> out) const override { copy(ids_, begin, out); }

    void document_begins(int64_t begin, int64_t end, std::vector<int64_t>& begins) const override {
        const auto first = std::upper_bound(begins_.begin(), begins_.end(), begin);
        begins.insert(begins.end(), first, std::lower_bound(first, begins_.end(), end));
    }
    bool knows_documents() const override { return true; }

    bool has_mask() const override { return !counted_.empty(); }
    void read_mask(int64_t begin, std::span<uint8_t> out) const override {
        if (!has_mask()) return TokenSource::read_mask(begin, out);
        copy(counted_, begin, out);
    }

    std::string description() const override {
        return concat("jsonl, ", size(), " tokens", has_mask() ? " with a loss mask" : "", ": ", named());
    }
    std::string where(int64_t token) const override { return concat(named(), ", token ", token, " of the records"); }

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
    int64_t vocab_;
    std::vector<int32_t> ids_;
    std::vector<uint8_t> counted_;  // empty: all
    std::vector<int64_t> begins_;
};

}  // namespace

bool is_jsonl(const std::vector<std::string>& paths, std::string_view format) {
    if (format != "auto") return format == "jsonl";
    const auto named = [](const std::string& path) { return path.ends_with(".jsonl"); };
    const auto count = std::count_if(paths.begin(), paths.end(), named);
    check<UsageError>(count == 0 || count == static_cast<int64_t>(paths.size()), count, " of ", paths.size(),
                      " files are JSONL: ", paths.front(), " ...; the files of one run must have one format");
    return count > 0;
}

std::shared_ptr<const TokenSource> open_records(const std::vector<std::string>& paths, const Tokenizer& tokenizer,
                                                const RecordOptions& options) {
    return std::make_shared<Records>(paths, tokenizer, options);
}

}  // namespace tutti::data
