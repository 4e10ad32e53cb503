// data/token_files.cpp: token sources that are files. Every layout is the same thing, ids of 1, 2 or 4 bytes after a
// header of 0 or 1024 bytes, so one class reads them all; what differs is how a file is recognised and checked.
// The layouts are written down in token_source.h.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <filesystem>
#include <optional>

#include "tutti/base/error.h"
#include "tutti/data/mapped_file.h"
#include "tutti/data/token_source.h"

namespace tutti::data {

namespace {

static_assert(std::endian::native == std::endian::little,
              "token files are little-endian and are read without swapping");

constexpr int64_t kLlmcHeaderBytes = 1024;
constexpr uint32_t kLlmcMagicU16 = 20240520, kLlmcMagicU32 = 20240801;

struct Layout {
    std::string_view name;
    int64_t header_bytes;
    int64_t id_bytes;
};
constexpr Layout kText{"text", 0, 1}, kNanoGpt{"nanogpt", 0, 2};
constexpr Layout kLlmcU16{"llmc-u16", kLlmcHeaderBytes, 2}, kLlmcU32{"llmc-u32", kLlmcHeaderBytes, 4};

uint32_t word(const MappedFile& file, int64_t index) {
    uint32_t value = 0;
    std::memcpy(&value, file.bytes().data() + index * 4, 4);
    return value;
}
int64_t size_of(const MappedFile& file) { return static_cast<int64_t>(file.bytes().size()); }
bool begins_with(const MappedFile& file, std::string_view start) {
    return file.bytes().size() >= start.size() && std::memcmp(file.bytes().data(), start.data(), start.size()) == 0;
}
bool has_llmc_magic(const MappedFile& file) {
    return size_of(file) >= 4 && (word(file, 0) == kLlmcMagicU16 || word(file, 0) == kLlmcMagicU32);
}

Layout checked_llmc(const MappedFile& file) {
    check<DataError>(size_of(file) >= kLlmcHeaderBytes, file.path(), ": an llm.c token file begins with a header of ",
                     kLlmcHeaderBytes, " bytes, the file has ", size_of(file), "; is the copy complete?");
    const uint32_t magic = word(file, 0), version = word(file, 1), count = word(file, 2);
    check<DataError>(has_llmc_magic(file), file.path(), ": byte offset 0: the magic number of llm.c tokens is ",
                     kLlmcMagicU16, " (u16 ids) or ", kLlmcMagicU32, " (u32 ids), got ", magic,
                     "; without a header it may be data.format = \"nanogpt\"");
    const bool wide = magic == kLlmcMagicU32;
    const uint32_t required = wide ? 7 : 1;
    check<DataError>(version == required, file.path(), ": byte offset 4: magic ", magic, " goes with version ",
                     required, ", got ", version, "; write the file again with a current llm.c script");
    const Layout layout = wide ? kLlmcU32 : kLlmcU16;
    const int64_t expected = kLlmcHeaderBytes + int64_t{count} * layout.id_bytes;
    check<DataError>(size_of(file) == expected, file.path(), ": byte offset 8: the header counts ", count,
                     " tokens, so the file must have ", expected, " bytes, it has ", size_of(file),
                     size_of(file) < expected ? "; is the copy complete?" : "; was something appended?");
    check<DataError>(count > 0, file.path(), ": byte offset 8: the header counts 0 tokens");
    return layout;
}

Layout checked_nanogpt(const MappedFile& file) {
    // 20240520 would be the u16 ids 55432 and 308: above GPT-2's 50257, so no nanoGPT file begins like this.
    check<DataError>(!has_llmc_magic(file), file.path(), ": byte offset 0: has the header of an llm.c file (magic ",
                     has_llmc_magic(file) ? word(file, 0) : 0, "); set data.format = \"llmc\" or \"auto\"");
    check<DataError>(size_of(file) % 2 == 0, file.path(),
                     ": nanoGPT tokens are 2 bytes each, so the size must be even, ", "the file has ", size_of(file),
                     " bytes (one is left at byte offset ", size_of(file) - 1, "); is the copy complete?");
    return kNanoGpt;
}

// Files that people name by mistake, and that would read as noise.
std::optional<std::string_view> foreign_kind(const MappedFile& file) {
    using namespace std::string_view_literals;
    if (begins_with(file, "MMIDIDX\0"sv)) return "a Megatron .idx file";
    if (begins_with(file, "BIN.TOK\n"sv)) return "an llmq token file";
    if (begins_with(file, "PK\x03\x04"sv)) return "a zip archive (PyTorch weights are)";
    if (begins_with(file, "\x1f\x8b\x08"sv)) return "gzip-compressed";
    if (begins_with(file, "\x28\xb5\x2f\xfd"sv)) return "zstd-compressed";
    if (size_of(file) >= kLlmcHeaderBytes && word(file, 0) == 20240522) return "an llm.c evaluation file";
    if (size_of(file) >= kLlmcHeaderBytes && word(file, 0) == 20240326) return "an llm.c model file";
    return std::nullopt;
}

Layout detected(const MappedFile& file) {
    if (has_llmc_magic(file)) return checked_llmc(file);
    const auto foreign = foreign_kind(file);
    check<DataError>(!foreign, file.path(), ": looks like ", foreign.value_or(""),
                     "; this version reads text, nanoGPT .bin and llm.c .bin (say which with data.format)");
    auto path = std::filesystem::path(file.path());
    if (path.extension() == ".bin") {
        std::error_code ignored;  // an unreadable neighbour is no neighbour
        check<DataError>(!std::filesystem::exists(path.replace_extension(".idx"), ignored), file.path(),
                         ": has a .idx file beside it, as Megatron data has; this version reads text, nanoGPT .bin and "
                         "llm.c .bin. If it is nanoGPT data, set data.format = \"nanogpt\"");
        return checked_nanogpt(file);
    }
    const auto start = file.bytes().first(std::min<size_t>(file.bytes().size(), 4096));
    const auto zero = std::find(start.begin(), start.end(), std::byte{0});
    check<DataError>(zero == start.end(), file.path(), ": byte offset ", zero - start.begin(),
                     ": a zero byte, so this is not plain text (UTF-16? a binary format?); convert it to UTF-8, or set "
                     "data.format = \"text\" to train on its bytes as they are");
    return kText;
}

Layout layout_of(const MappedFile& file, std::string_view format) {
    if (format == "text") return kText;
    if (format == "nanogpt") return checked_nanogpt(file);
    if (format == "llmc") return checked_llmc(file);
    check<UsageError>(format == "auto", "data.format must be auto, text, nanogpt or llmc, got \"", format, "\"");
    return detected(file);
}

struct Part {
    MappedFile file;
    int64_t begin;  // its first token in the whole row
    int64_t count;
};

template <class Id>
void widen(const std::byte* stored, std::span<int32_t> out) {
    for (int32_t& id : out) {
        Id value;
        std::memcpy(&value, stored, sizeof value);
        id = static_cast<int32_t>(value);
        stored += sizeof value;
    }
}

class TokenFiles final : public TokenSource {
  public:
    TokenFiles(std::vector<Part> parts, Layout layout) : parts_(std::move(parts)), layout_(layout) {}

    int64_t size() const override { return parts_.back().begin + parts_.back().count; }
    int64_t vocab_bound() const override { return int64_t{1} << (8 * layout_.id_bytes); }
    std::string_view format() const override { return layout_.name; }

    void read(int64_t begin, std::span<int32_t> out) const override {
        const auto count = static_cast<int64_t>(out.size());
        check(begin >= 0 && begin <= size() - count, "tokens [", begin, ", ", begin + count, ") of ", size());
        for (auto part = holder(begin); !out.empty(); ++part) {
            const int64_t skip = begin - part->begin;
            const auto piece = out.first(std::min(out.size(), static_cast<size_t>(part->count - skip)));
            part->file.check_not_truncated();
            const std::byte* stored = part->file.bytes().data() + layout_.header_bytes + skip * layout_.id_bytes;
            if (layout_.id_bytes == 1) widen<uint8_t>(stored, piece);
            if (layout_.id_bytes == 2) widen<uint16_t>(stored, piece);
            if (layout_.id_bytes == 4) widen<uint32_t>(stored, piece);
            begin += static_cast<int64_t>(piece.size());
            out = out.subspan(piece.size());
        }
    }

    std::string description() const override {
        constexpr size_t kNamed = 3;
        std::string text = concat(layout_.name, ", ", size(), " tokens: ");
        for (size_t i = 0; i < std::min(kNamed, parts_.size()); ++i)
            text += (i > 0 ? ", " : "") + parts_[i].file.path();
        if (parts_.size() > kNamed) text += concat(" and ", parts_.size() - kNamed, " more files");
        return text;
    }

    std::string where(int64_t token) const override {
        check(token >= 0 && token < size(), "token ", token, " of ", size());
        const auto part = holder(token);
        const int64_t local = token - part->begin;
        return concat(part->file.path(), ", token ", local, " (byte offset ",
                      layout_.header_bytes + local * layout_.id_bytes, ")");
    }

  private:
    // The part that holds the token; the last one for a token at the end.
    std::vector<Part>::const_iterator holder(int64_t token) const {
        return std::prev(std::upper_bound(parts_.begin(), parts_.end(), token,
                                          [](int64_t t, const Part& part) { return t < part.begin; }));
    }

    std::vector<Part> parts_;
    Layout layout_;
};

}  // namespace

std::shared_ptr<const TokenSource> open_tokens(const std::vector<std::string>& paths, std::string_view format) {
    check<UsageError>(!paths.empty(), "no data file is named; set data.train = [\"corpus.txt\"]");
    std::vector<Part> parts;
    std::optional<Layout> common;
    int64_t total = 0;
    for (const auto& path : paths) {
        MappedFile file(path);
        const Layout layout = layout_of(file, format);
        check<UsageError>(!common || common->name == layout.name, path, ": is ", layout.name, " data, but ",
                          paths.front(), " is ", common.value_or(layout).name,
                          "; the files of one run must share one vocabulary");
        common = layout;
        const int64_t count = (size_of(file) - layout.header_bytes) / layout.id_bytes;
        parts.push_back({std::move(file), total, count});
        total += count;
    }
    return std::make_shared<TokenFiles>(std::move(parts), *common);
}

}  // namespace tutti::data
