// data/text_tokens.cpp: directories of token files with their digests; text, then JSONL records, encoded into them or
// into memory.
#include "tutti/data/text_tokens.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <sstream>

#include "tutti/base/digits.h"
#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/read_file.h"
#include "tutti/data/encode_files.h"
#include "tutti/data/text_stream.h"
#include "tutti/data/token_writer.h"
#include "tutti/text/tokenizer.h"

namespace tutti::data {

namespace fs = std::filesystem;

namespace {

constexpr const char* kDigests = "digests";  // "<digest> <name>" for each of the other files
constexpr const char* kAdvice =
    "the ids of a text are kept beside it; put the text into a folder that can be written and has the space, or make "
    "token files elsewhere with `tutti data tokenize`";

std::string digest_of_file(const std::string& path) { return to_hex(text::digest_of(MappedFile(path).text())); }

// A directory that is removed at the end of the scope unless it has been renamed; after a kill, by the next run.
struct Temporary {
    explicit Temporary(std::string name) : path(std::move(name)) {
        for (int attempt = 0; lock < 0 && attempt < 20; ++attempt) {  // another run may remove it before it is locked
            std::error_code error;
            fs::create_directory(path, error);
            check_written(!error, error.value(), path, ": cannot be made (", error.message(), "): ", kAdvice);
            lock = open_locked(path + "/" + kLockOfFolder);
        }
        check_written(lock >= 0, errno, path, ": cannot be locked (", std::strerror(errno), "): ", kAdvice);
    }
    ~Temporary() {
        std::error_code ignored;
        fs::remove_all(path, ignored);
        ::close(lock);
    }
    Temporary(const Temporary&) = delete;
    Temporary& operator=(const Temporary&) = delete;
    std::string path;
    int lock = -1;
};

void make_directory(const std::string& directory, const MakeTokens& make) {
    const Temporary temporary(concat(directory, ".", ::getpid(), kUnfinished));
    std::string digests;
    for (const std::string& path : make(temporary.path + "/tokens"))
        digests += concat(digest_of_file(path), " ", fs::path(path).filename().string(), "\n");
    AtomicFile file(temporary.path + "/" + kDigests, kAdvice);
    file.write(digests.data(), digests.size());
    file.commit();
    std::error_code error, ignored;
    fs::rename(temporary.path, directory, error);
    fs::remove(directory + "/" + kLockOfFolder, ignored);
    const bool others = error && fs::exists(directory);  // another run made the directory first
    check<DataError>(!error || others, temporary.path, ": cannot be renamed to ", directory, ": ", error.message());
}

void verify(const std::string& directory) {
    const std::string remedy = concat("; remove ", directory, ", it will be made again");
    std::map<std::string, std::string> listed;
    {
        const MappedFile file(directory + "/" + kDigests);
        std::istringstream lines{std::string(file.text())};
        for (std::string digest, name; lines >> digest >> name;) listed[name] = digest;
    }
    for (const char* name : {"tokens.bin", "tokens.idx", "tokens.mask"}) {
        const std::string path = directory + "/" + name;
        const auto wanted = listed.find(name);
        if (wanted == listed.end() && !fs::exists(path)) continue;
        check<DataError>(wanted != listed.end(), path, ": is not among the digests beside it", remedy);
        check<DataError>(fs::exists(path), path, ": is missing", remedy);
        const std::string digest = digest_of_file(path);
        check<DataError>(digest == wanted->second, path, ": the digest of its bytes is ", digest,
                         ", that of what was written is ", wanted->second, ": the disk has changed it", remedy);
    }
    check<DataError>(listed.contains("tokens.bin"), directory, "/", kDigests, ": does not name tokens.bin", remedy);
}

}  // namespace

std::string cached_tokens(const std::string& directory, const MakeTokens& make) {
    // Leftovers for this text, also those of an earlier content or of another tokenizer.
    remove_unfinished(directory.substr(0, directory.rfind('.', directory.rfind('.') - 1)));
    std::error_code unreadable;  // writing reports the reason better
    if (!fs::exists(directory, unreadable)) make_directory(directory, make);
    verify(directory);
    return directory + "/tokens.bin";
}

namespace {

// The cache beside `text` for token files made under `key`, a digest of the text's bytes and of everything else that
// the ids depend on. Another text or tokenizer has another directory, so an existing one is never stale. Old
// directories may be deleted at any time.
std::string cache_directory(const MappedFile& text, uint64_t key) {
    return concat(text.path(), ".", to_hex(key), ".tokens");
}

std::string directory_of(const MappedFile& file, const text::Tokenizer& tokenizer) {
    constexpr int kVersion = 3;  // of the encoding of text; increased when it changes
    return cache_directory(file, text::Fingerprint()
                                     .add(kVersion)
                                     .add(tokenizer.fingerprint())
                                     .add(text::digest_of(without_byte_order_mark(file.text())))
                                     .value());
}

// Calls take(piece) for one piece of the file after the other, and options.progress for each 8 MiB and at the end.
void encode_file(const MappedFile& file, const text::Tokenizer& tokenizer, const FileEncoding& encoding,
                 const EncodeOptions& options, const std::function<void(EncodedPiece&&)>& take) {
    const auto begin = std::chrono::steady_clock::now();
    EncodeProgress progress{file.path(), 0, static_cast<int64_t>(file.bytes().size()), 0, 0};
    int64_t shown = 0;
    const auto show = [&] {
        shown = progress.bytes;
        progress.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        options.progress(progress);
    };
    encode_files(tokenizer, {file.path()}, encoding, [&](EncodedPiece&& piece) {
        file.check_not_truncated();
        progress.bytes += piece.stored;
        progress.tokens += static_cast<int64_t>(piece.ids.size());
        take(std::move(piece));
        // The file is read some pieces ahead of what is encoded.
        if (progress.bytes >= shown + (8 << 20) && progress.bytes < progress.bytes_total) show();
    });
    show();
}

std::vector<std::string> write_ids(const MappedFile& file, const std::string& prefix, const text::Tokenizer& tokenizer,
                                   const EncodeOptions& options) {
    TokenWriter writer("llmc", prefix, tokenizer.vocab());
    encode_file(file, tokenizer, {.threads = options.threads}, options, [&](EncodedPiece&& piece) {
        check<UsageError>(writer.tokens() + static_cast<int64_t>(piece.ids.size()) < (int64_t{1} << 32), file.path(),
                          ": has 2^32 tokens or more, which the file of its ids ",
                          "cannot count; make a Megatron file of it with `tutti data tokenize`");
        writer.append({.ids = std::move(piece.ids)});
    });
    return writer.finish();
}

// Ids in memory: of a dry run, which writes no files, and of small sets of records.
class TokensInMemory final : public TokenSource {
  public:
    // Ids are below `bound`; `name` is the file that messages show.
    TokensInMemory(int64_t bound, std::string name) : bound_(bound), name_(std::move(name)) {}

    void append(const EncodedPiece& piece) {
        for (const int64_t begin : piece.begins) begins_.push_back(size() + begin);
        if (!piece.loss_mask.empty() || !loss_mask_.empty()) {
            loss_mask_.resize(ids_.size(), 1);
            loss_mask_.insert(loss_mask_.end(), piece.loss_mask.begin(), piece.loss_mask.end());
            loss_mask_.resize(ids_.size() + piece.ids.size(), 1);
        }
        ids_.insert(ids_.end(), piece.ids.begin(), piece.ids.end());
    }

    int64_t size() const override { return static_cast<int64_t>(ids_.size()); }
    void read(int64_t begin, std::span<int32_t> out) const override { copy(ids_, begin, out); }
    void document_begins(int64_t begin, int64_t end, std::vector<int64_t>& begins) const override {
        const auto first = std::upper_bound(begins_.begin(), begins_.end(), begin);
        begins.insert(begins.end(), first, std::lower_bound(first, begins_.end(), end));
    }
    bool has_mask() const override { return !loss_mask_.empty(); }
    void read_mask(int64_t begin, std::span<uint8_t> out) const override {
        if (!has_mask()) return TokenSource::read_mask(begin, out);
        copy(loss_mask_, begin, out);
    }
    int64_t vocab_bound() const override { return bound_; }
    std::string_view format() const override { return "encoded text"; }
    std::string description() const override { return concat("encoded text, ", size(), " tokens: ", name_); }
    std::string where(int64_t token) const override { return concat(name_, ", token ", token); }

  private:
    template <class T>
    static void copy(const std::vector<T>& from, int64_t begin, std::span<T> out) {
        check_range(begin, out.size(), static_cast<int64_t>(from.size()));
        std::copy_n(from.begin() + begin, out.size(), out.begin());
    }

    std::vector<int32_t> ids_;
    std::vector<uint8_t> loss_mask_;  // empty: all
    std::vector<int64_t> begins_;
    int64_t bound_;
    std::string name_;
};

}  // namespace

std::shared_ptr<const TokenSource> open_text(const std::vector<std::string>& paths, const text::Tokenizer& tokenizer,
                                             const EncodeOptions& options) {
    std::vector<std::string> cached;
    for (const std::string& path : paths) {
        const MappedFile file(path);
        const std::string directory = directory_of(file, tokenizer);
        std::error_code unreadable;  // counts as missing
        if (!options.write && !fs::exists(directory, unreadable)) break;
        cached.push_back(cached_tokens(
            directory, [&](const std::string& prefix) { return write_ids(file, prefix, tokenizer, options); }));
    }
    if (cached.size() == paths.size()) return open_tokens(cached, "llmc");
    const auto tokens = std::make_shared<TokensInMemory>(tokenizer.vocab(), paths.front());
    for (const std::string& path : paths)
        encode_file(MappedFile(path), tokenizer, {.threads = options.threads}, options,
                    [&](EncodedPiece&& piece) { tokens->append({.ids = std::move(piece.ids)}); });
    return tokens;
}

namespace {

FileEncoding encoding_of(const RecordOptions& options) {
    return {.format = "jsonl",
            .field = options.field,
            .separator = "",
            .eod = options.eod,
            .affixes = true,
            .threads = options.encode.threads};
}

int64_t vocab_of(const text::Tokenizer& tokenizer, const RecordOptions& options) {
    return std::max<int64_t>(tokenizer.vocab(), options.eod.value_or(-1) + 1);
}

// JSONL records, whose ids are in `ids`: token files beside the records, or memory.
class Records final : public TokenSource {
  public:
    Records(const std::vector<std::string>& paths, int64_t vocab, std::shared_ptr<const TokenSource> ids)
        : paths_(paths), vocab_(vocab), ids_(std::move(ids)) {}

    int64_t size() const override { return ids_->size(); }
    void read(int64_t begin, std::span<int32_t> out) const override { ids_->read(begin, out); }
    void document_begins(int64_t begin, int64_t end, std::vector<int64_t>& begins) const override {
        ids_->document_begins(begin, end, begins);
    }
    bool has_mask() const override { return ids_->has_mask(); }
    void read_mask(int64_t begin, std::span<uint8_t> out) const override { ids_->read_mask(begin, out); }
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
    std::shared_ptr<const TokenSource> ids_;
};

// A digest of everything that the ids of the records depend on.
uint64_t key_of(const MappedFile& file, const text::Tokenizer& tokenizer, const RecordOptions& options) {
    constexpr int kVersion = 2;  // of the encoding of records; increased when it changes
    text::Fingerprint key;
    key.add("records").add(kVersion).add(tokenizer.fingerprint()).add(options.field).add(options.eod.value_or(-1));
    for (const std::vector<int32_t>& affix : {tokenizer.prefix(), tokenizer.suffix()}) {
        key.add(affix.size());
        for (const int32_t id : affix) key.add(id);
    }
    key.add(text::digest_of(file.text()));
    return key.value();
}

std::vector<std::string> write_records(const MappedFile& file, const std::string& prefix,
                                       const text::Tokenizer& tokenizer, const RecordOptions& options) {
    TokenWriter writer("megatron", prefix, vocab_of(tokenizer, options));
    encode_file(file, tokenizer, encoding_of(options), options.encode,
                [&](EncodedPiece&& piece) { writer.append(piece); });
    check<DataError>(writer.tokens() > 0, file.path(), ": has no token");
    return writer.finish();
}

// The first 64 KiB of the text. DataError of open_text_stream().
std::string beginning_of(const std::string& path) {
    std::string begin(64 << 10, '\0');
    const auto text = open_text_stream(path);
    size_t size = 0;
    for (size_t n = 1; n > 0 && size < begin.size(); size += n) n = text->read(&begin[size], begin.size() - size);
    begin.resize(size);
    return begin;
}

// Whether the first line of a file is a JSON object. A file that cannot be read is reported when it is opened.
bool begins_as_jsonl(const std::string& path) {
    std::error_code unreadable;
    if (!fs::is_regular_file(path, unreadable)) return false;
    std::string begin;
    try {
        begin = beginning_of(path);
    } catch (const DataError&) {
        return false;
    }
    const auto first = Json::try_parse(begin.substr(0, begin.find('\n')));
    return first && first->is_object();
}

}  // namespace

void check_is_text(const std::string& path) {
    const size_t zero = beginning_of(path).find('\0');
    check<DataError>(zero == std::string::npos, path, ": byte offset ", zero,
                     ": a zero byte, so this is not plain text (UTF-16? a binary format?); convert it to UTF-8");
}

bool is_jsonl(const std::vector<std::string>& paths, std::string_view format) {
    if (format != "auto") return format == "jsonl";
    for (const std::string& path : paths)
        check<UsageError>(path != kStandardInput,
                          "standard input has no name that tells text from JSONL: give --input text or --input jsonl");
    const auto named = [](const std::string& path) { return uncompressed_name(path).ends_with(".jsonl"); };
    const auto count = std::count_if(paths.begin(), paths.end(), named);
    check<UsageError>(count == 0 || count == static_cast<int64_t>(paths.size()), count, " of ", paths.size(),
                      " files are JSONL: ", paths.front(), " ...; the files of one run must have one format");
    if (count > 0) return true;
    const auto records = std::find_if(paths.begin(), paths.end(), begins_as_jsonl);
    check<UsageError>(
        records == paths.end(), records == paths.end() ? "" : *records,
        " begins with a JSON object on a line of its own, as JSONL does, and is not called *.jsonl: rename it, "
        "or say jsonl or text by data.format (of `tutti data`: --input, --format)");
    return false;
}

std::shared_ptr<const TokenSource> open_records(const std::vector<std::string>& paths, const text::Tokenizer& tokenizer,
                                                const RecordOptions& options) {
    int64_t bytes = 0;
    for (const std::string& path : paths) bytes += static_cast<int64_t>(MappedFile(path).bytes().size());
    const int64_t vocab = vocab_of(tokenizer, options);
    if (!options.encode.write || bytes < options.kept_from) {
        const auto tokens = std::make_shared<TokensInMemory>(vocab, paths.front());
        encode_files(tokenizer, paths, encoding_of(options), [&](EncodedPiece&& piece) { tokens->append(piece); });
        check<DataError>(tokens->size() > 0, paths.front(), ": has no token");
        return std::make_shared<Records>(paths, vocab, tokens);
    }
    std::vector<std::string> cached;
    for (const std::string& path : paths) {
        const MappedFile file(path);
        cached.push_back(
            cached_tokens(cache_directory(file, key_of(file, tokenizer, options)),
                          [&](const std::string& prefix) { return write_records(file, prefix, tokenizer, options); }));
    }
    return std::make_shared<Records>(paths, vocab, open_tokens(cached, "megatron"));
}

}  // namespace tutti::data
