// data/jsonl.cpp: the pieces of encode_files, put together in memory or written to files.
#include "tutti/data/jsonl.h"

#include <algorithm>
#include <chrono>

#include "tutti/base/error.h"
#include "tutti/data/encode_files.h"
#include "tutti/data/kept_tokens.h"
#include "tutti/data/token_writer.h"
#include "tutti/data/tokenizer.h"

namespace tutti::data {

namespace {

FileEncoding encoding_of(const RecordOptions& options) {
    return {.format = "jsonl",
            .field = options.field,
            .separator = "",
            .eod = options.eod,
            .affixes = true,
            .threads = options.encode.threads};
}

int64_t vocab_of(const Tokenizer& tokenizer, const RecordOptions& options) {
    return std::max<int64_t>(tokenizer.vocab(), options.eod.value_or(-1) + 1);
}

// Wherever the ids are.
class Records : public TokenSource {
  public:
    Records(const std::vector<std::string>& paths, int64_t vocab) : paths_(paths), vocab_(vocab) {}

    int64_t vocab_bound() const override { return vocab_; }
    std::string_view format() const override { return "jsonl"; }
    bool knows_documents() const override { return true; }
    std::string description() const override {
        return concat("jsonl, ", size(), " tokens", has_mask() ? " with a loss mask" : "", ": ", named());
    }
    std::string where(int64_t token) const override { return concat(named(), ", token ", token, " of the records"); }

  private:
    std::string named() const {
        return paths_.size() == 1 ? paths_[0] : concat(paths_[0], " and ", paths_.size() - 1, " more files");
    }

    std::vector<std::string> paths_;
    int64_t vocab_;
};

class RecordsInMemory final : public Records {
  public:
    RecordsInMemory(const std::vector<std::string>& paths, const Tokenizer& tokenizer, const RecordOptions& options)
        : Records(paths, vocab_of(tokenizer, options)) {
        encode_files(tokenizer, paths, encoding_of(options), [this](EncodedPiece&& piece) { append(piece); });
        check<DataError>(!ids_.empty(), paths.front(), ": has no token");
    }

    int64_t size() const override { return static_cast<int64_t>(ids_.size()); }

    void read(int64_t begin, std::span<int32_t> out) const override { copy(ids_, begin, out); }

    void document_begins(int64_t begin, int64_t end, std::vector<int64_t>& begins) const override {
        const auto first = std::upper_bound(begins_.begin(), begins_.end(), begin);
        begins.insert(begins.end(), first, std::lower_bound(first, begins_.end(), end));
    }

    bool has_mask() const override { return !counted_.empty(); }
    void read_mask(int64_t begin, std::span<uint8_t> out) const override {
        if (!has_mask()) return TokenSource::read_mask(begin, out);
        copy(counted_, begin, out);
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
    std::vector<int32_t> ids_;
    std::vector<uint8_t> counted_;  // empty: all
    std::vector<int64_t> begins_;
};

class KeptRecords final : public Records {
  public:
    KeptRecords(const std::vector<std::string>& paths, int64_t vocab, std::shared_ptr<const TokenSource> files)
        : Records(paths, vocab), files_(std::move(files)) {}

    int64_t size() const override { return files_->size(); }
    void read(int64_t begin, std::span<int32_t> out) const override { files_->read(begin, out); }
    void document_begins(int64_t begin, int64_t end, std::vector<int64_t>& begins) const override {
        files_->document_begins(begin, end, begins);
    }
    bool has_mask() const override { return files_->has_mask(); }
    void read_mask(int64_t begin, std::span<uint8_t> out) const override { files_->read_mask(begin, out); }

  private:
    std::shared_ptr<const TokenSource> files_;
};

// Of all that the ids of the records depend on.
uint64_t key_of(const MappedFile& file, const Tokenizer& tokenizer, const RecordOptions& options) {
    constexpr int kVersion = 1;  // of how records become ids: counts up when that changes
    Fingerprint key;
    key.add("records").add(kVersion).add(tokenizer.fingerprint()).add(options.field).add(options.eod.value_or(-1));
    for (const std::vector<int32_t>& affix : {tokenizer.prefix(), tokenizer.suffix()}) {
        key.add(affix.size());
        for (const int32_t id : affix) key.add(id);
    }
    key.add(digest_of({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}));
    return key.value();
}

std::vector<std::string> write_records(const MappedFile& file, const std::string& prefix, const Tokenizer& tokenizer,
                                       const RecordOptions& options) {
    const auto begin = std::chrono::steady_clock::now();
    EncodeProgress progress{file.path(), 0, static_cast<int64_t>(file.bytes().size()), 0, 0};
    int64_t shown = 0;
    TokenWriter writer("megatron", prefix, vocab_of(tokenizer, options));
    encode_files(tokenizer, {file.path()}, encoding_of(options), [&](EncodedPiece&& piece) {
        writer.append(piece);
        progress.bytes += piece.bytes;
        progress.tokens = writer.tokens();
        progress.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        if (progress.bytes < shown + (8 << 20) && progress.bytes < progress.bytes_total) return;
        shown = progress.bytes;
        options.encode.progress(progress);
    });
    check<DataError>(writer.tokens() > 0, file.path(), ": has no token");
    return writer.finish();
}

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
    int64_t bytes = 0;
    for (const std::string& path : paths) bytes += static_cast<int64_t>(MappedFile(path).bytes().size());
    if (!options.encode.write || bytes < options.kept_from)
        return std::make_shared<RecordsInMemory>(paths, tokenizer, options);
    std::vector<std::string> kept;
    for (const std::string& path : paths) {
        const MappedFile file(path);
        kept.push_back(
            kept_tokens(kept_directory(file, key_of(file, tokenizer, options)),
                        [&](const std::string& prefix) { return write_records(file, prefix, tokenizer, options); }));
    }
    return std::make_shared<KeptRecords>(paths, vocab_of(tokenizer, options), open_tokens(kept, "megatron"));
}

}  // namespace tutti::data
