#include "tutti/data/text_tokens.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>

#include "tutti/base/error.h"
#include "tutti/base/mapped_file.h"
#include "tutti/data/kept_tokens.h"
#include "tutti/data/new_file.h"
#include "tutti/data/tokenizer.h"

namespace tutti::data {

namespace {

constexpr uint32_t kMagicU16 = 20240520, kMagicU32 = 20240801;  // of llm.c; see token_source.h

std::string_view text_of(const MappedFile& file) {
    return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

std::string directory_of(const MappedFile& file, const Tokenizer& tokenizer) {
    constexpr int kVersion = 2;  // of how text becomes ids: counts up when that changes
    return kept_directory(
        file, Fingerprint().add(kVersion).add(tokenizer.fingerprint()).add(digest_of(text_of(file))).value());
}

// Calls take(ids) for one stretch of the text after the other.
template <class Take>
void encode_by_parts(const MappedFile& file, const Tokenizer& tokenizer, const EncodeOptions& options,
                     const Take& take) {
    // A few pieces for each thread: progress shows a few times a second, and ids do not pile up.
    constexpr size_t kPart = 8 << 20;
    const auto begin = std::chrono::steady_clock::now();
    const std::string_view text = text_of(file);
    EncodeProgress progress{file.path(), 0, static_cast<int64_t>(text.size()), 0, 0};
    for (size_t at = 0; at < text.size();) {
        file.check_not_truncated();
        const std::string_view rest = text.substr(at);
        const size_t size = rest.size() <= kPart ? rest.size() : tokenizer.safe_cut(rest, kPart);
        const std::vector<int32_t> ids = encode_text(tokenizer, rest.substr(0, size), options.threads);
        take(ids);
        at += size;
        progress.bytes = static_cast<int64_t>(at);
        progress.tokens += static_cast<int64_t>(ids.size());
        progress.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        options.progress(progress);
    }
}

std::string write_ids(const MappedFile& file, const std::string& path, const Tokenizer& tokenizer,
                      const EncodeOptions& options) {
    const bool wide = tokenizer.vocab() > 65536;
    std::array<uint32_t, 256> header{wide ? kMagicU32 : kMagicU16, wide ? 7u : 1u};
    uint64_t count = 0;
    NewFile out(path);
    out.write(header.data(), sizeof header);
    std::vector<uint16_t> narrow;
    encode_by_parts(file, tokenizer, options, [&](const std::vector<int32_t>& ids) {
        count += ids.size();
        check<UsageError>(count < (uint64_t{1} << 32), file.path(),
                          ": has 2^32 tokens or more, which the file of its ids ",
                          "cannot count; make a Megatron file of it with `tutti data tokenize`");
        if (wide) return out.write(ids.data(), ids.size() * 4);
        narrow.assign(ids.begin(), ids.end());
        out.write(narrow.data(), narrow.size() * 2);
    });
    header[2] = static_cast<uint32_t>(count);
    out.write_at(0, header.data(), sizeof header);
    out.commit();
    return path;
}

// Ids that no file holds: of a dry run.
class TokensInMemory final : public TokenSource {
  public:
    TokensInMemory(std::vector<int32_t> ids, int64_t bound, std::string name)
        : ids_(std::move(ids)), bound_(bound), name_(std::move(name)) {}
    int64_t size() const override { return static_cast<int64_t>(ids_.size()); }
    void read(int64_t begin, std::span<int32_t> out) const override {
        check(begin >= 0 && begin <= size() - static_cast<int64_t>(out.size()), "tokens from ", begin, " of ", size());
        std::copy_n(ids_.begin() + begin, out.size(), out.begin());
    }
    int64_t vocab_bound() const override { return bound_; }
    std::string_view format() const override { return "encoded text"; }
    std::string description() const override { return concat("encoded text, ", size(), " tokens: ", name_); }
    std::string where(int64_t token) const override { return concat(name_, ", token ", token); }

  private:
    std::vector<int32_t> ids_;
    int64_t bound_;
    std::string name_;
};

}  // namespace

std::shared_ptr<const TokenSource> open_text(const std::vector<std::string>& paths, const Tokenizer& tokenizer,
                                             const EncodeOptions& options) {
    std::vector<std::string> kept;
    for (const std::string& path : paths) {
        const MappedFile file(path);
        const std::string directory = directory_of(file, tokenizer);
        std::error_code unreadable;  // as if it were not there
        if (!options.write && !std::filesystem::exists(directory, unreadable)) break;
        kept.push_back(kept_tokens(directory, [&](const std::string& prefix) -> std::vector<std::string> {
            return {write_ids(file, prefix + ".bin", tokenizer, options)};
        }));
    }
    if (kept.size() == paths.size()) return open_tokens(kept, "llmc");
    std::vector<int32_t> ids;
    for (const std::string& path : paths)
        encode_by_parts(MappedFile(path), tokenizer, options,
                        [&](const std::vector<int32_t>& part) { ids.insert(ids.end(), part.begin(), part.end()); });
    return std::make_shared<TokensInMemory>(std::move(ids), tokenizer.vocab(), paths.front());
}

}  // namespace tutti::data
