// data/token_source.cpp: mapped token files, and the sample and fingerprint of any source. Every layout is ids of 1 to
// 8 bytes after a header of 0 or 1024 bytes, so one class reads all of them; layouts differ in how a file is recognised
// and checked.
#include "tutti/data/token_source.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <optional>

#include "tutti/base/error.h"
#include "tutti/base/read_file.h"
#include "tutti/base/strings.h"
#include "tutti/base/to_size.h"
#include "tutti/data/megatron_index.h"
#include "tutti/data/text_stream.h"
#include "tutti/spec/fields.h"

namespace tutti::data {

namespace {

static_assert(std::endian::native == std::endian::little,
              "token files are little-endian and are read without swapping");

struct Layout {
    std::string_view name;
    int64_t header_bytes;
    IdType type;
    int64_t id_bytes() const { return width_of(type); }
};
constexpr Layout kNanoGpt{"nanogpt", 0, IdType::u16};
constexpr Layout kLlmcU16{"llmc-u16", kLlmcHeaderBytes, IdType::u16};
constexpr Layout kLlmcU32{"llmc-u32", kLlmcHeaderBytes, IdType::u32};
constexpr Layout kLlmq{"llmq", kLlmcHeaderBytes, IdType::i32};
constexpr std::string_view kLlmqMagic = "BIN.TOK\n";

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
    return size_of(file) >= 4 && (word(file, 0) == kLlmcGpt2.magic || word(file, 0) == kLlmcLlama3.magic);
}

void check_header_size(const MappedFile& file, const char* program) {
    check<DataError>(size_of(file) >= kLlmcHeaderBytes, file.path(), ": an ", program,
                     " token file begins with a header of ", kLlmcHeaderBytes, " bytes, the file has ", size_of(file),
                     "; is the copy complete?");
}

// `count`, at byte `offset` of the header, must be that of a file of `expected` bytes.
void check_count(const MappedFile& file, int64_t offset, uint32_t count, int64_t expected, bool mask = false) {
    check<DataError>(size_of(file) == expected, file.path(), ": byte offset ", offset, ": the header counts ", count,
                     " tokens", mask ? " with a mask" : "", ", so the file must have ", expected, " bytes, it has ",
                     size_of(file), size_of(file) < expected ? "; is the copy complete?" : "; was something appended?");
    check<DataError>(count > 0, file.path(), ": byte offset ", offset, ": the header counts 0 tokens");
}

Layout checked_llmc(const MappedFile& file) {
    check_header_size(file, "llm.c");
    const uint32_t magic = word(file, 0), version = word(file, 1), count = word(file, 2);
    check<DataError>(has_llmc_magic(file), file.path(), ": byte offset 0: the magic number of llm.c tokens is ",
                     kLlmcGpt2.magic, " (u16 ids) or ", kLlmcLlama3.magic, " (u32 ids), got ", magic,
                     "; without a header it may be data.format = \"nanogpt\"");
    const bool wide = magic == kLlmcLlama3.magic;
    const uint32_t required = (wide ? kLlmcLlama3 : kLlmcGpt2).version;
    check<DataError>(version == required, file.path(), ": byte offset 4: magic ", magic, " goes with version ",
                     required, ", got ", version, "; write the file again with a current llm.c script");
    const Layout layout = wide ? kLlmcU32 : kLlmcU16;
    check_count(file, 8, count, kLlmcHeaderBytes + int64_t{count} * layout.id_bytes());
    return layout;
}

// Version 1 has no such field; its bytes there are not a number.
uint32_t llmq_mask(const MappedFile& file) { return word(file, 2) == 1 ? 0 : word(file, 6); }

Layout checked_llmq(const MappedFile& file) {
    check<DataError>(begins_with(file, kLlmqMagic), file.path(), ": byte offset 0: an llmq token file begins with ",
                     "\"BIN.TOK\", this one does not");
    check_header_size(file, "llmq");
    const uint32_t version = word(file, 2), width = word(file, 3), count = word(file, 4), mask = llmq_mask(file);
    check<DataError>(version == 1 || version == 2, file.path(), ": byte offset 8: llmq token files have version 1 or ",
                     "2, got ", version);
    check<DataError>(width == 4, file.path(), ": byte offset 12: llmq ids have 4 bytes, the header says ", width);
    check<DataError>(mask <= 1, file.path(), ": byte offset 24: whether there is a mask is 0 or 1, got ", mask);
    const int64_t ids = kLlmcHeaderBytes + int64_t{count} * 4, mask_bytes = mask ? (int64_t{count} + 7) / 8 : 0;
    check_count(file, 16, count, ids + mask_bytes, mask != 0);
    return kLlmq;
}

Layout checked_nanogpt(const MappedFile& file) {
    // 20240520 would be the u16 ids 55432 and 308: above GPT-2's 50257, so no nanoGPT file begins like this.
    check<DataError>(!has_llmc_magic(file), file.path(), ": byte offset 0: has the header of an llm.c file (magic ",
                     has_llmc_magic(file) ? word(file, 0) : 0, "); set data.format = \"llmc\" or \"auto\"");
    check<DataError>(!begins_with(file, kLlmqMagic), file.path(), ": byte offset 0: has the header of an llmq file; ",
                     "set data.format = \"llmq\" or \"auto\"");
    check<DataError>(size_of(file) % 2 == 0, file.path(),
                     ": nanoGPT tokens are 2 bytes each, so the size must be even, ", "the file has ", size_of(file),
                     " bytes (one is left at byte offset ", size_of(file) - 1, "); is the copy complete?");
    return kNanoGpt;
}

// Known files that are not token files.
std::optional<std::string> foreign_kind(const MappedFile& file) {
    if (begins_with(file, kMegatronMagic)) return "the .idx of a Megatron dataset: name the .bin or the prefix of both";
    if (begins_with(file, "PK\x03\x04")) return "a zip archive (PyTorch weights are)";
    const std::string_view compression = compression_of(file.text());
    if (!compression.empty())
        return concat("text that ", compression, " has compressed: make token files of it, `tutti data tokenize ",
                      quoted_for_shell(file.path()), " --out PREFIX`; only JSONL is read compressed");
    if (size_of(file) >= kLlmcHeaderBytes && word(file, 0) == 20240522) return "an llm.c evaluation file";
    if (size_of(file) >= kLlmcHeaderBytes && word(file, 0) == 20240326) return "an llm.c model file";
    return std::nullopt;
}

Layout text_layout(const MappedFile& file) {
    const std::string_view text = file.text(), behind_mark = without_byte_order_mark(text);
    check<DataError>(!behind_mark.empty(), file.path(), ": has no byte of text");
    return {"text", static_cast<int64_t>(text.size() - behind_mark.size()), IdType::u8};
}

Layout detected(const MappedFile& file) {
    if (has_llmc_magic(file)) return checked_llmc(file);
    if (begins_with(file, kLlmqMagic)) return checked_llmq(file);
    const auto foreign = foreign_kind(file);
    check<DataError>(!foreign, file.path(), ": looks like ", foreign.value_or(""),
                     "; text, JSONL, Megatron, nanoGPT, llm.c and llmq files can be read (say which with data.format)");
    if (file.path().ends_with(".bin")) return checked_nanogpt(file);
    const auto start = file.bytes().first(std::min<size_t>(file.bytes().size(), 4096));
    const auto zero = std::find(start.begin(), start.end(), std::byte{0});
    check<DataError>(zero == start.end(), file.path(), ": byte offset ", zero - start.begin(),
                     ": a zero byte, so this is not plain text (UTF-16? a binary format?); convert it to UTF-8, or set "
                     "data.format = \"text\" to train on its bytes as they are");
    return text_layout(file);
}

Layout layout_of(const MappedFile& file, std::string_view format) {
    if (format == "text") return text_layout(file);
    if (format == "nanogpt") return checked_nanogpt(file);
    if (format == "llmc") return checked_llmc(file);
    if (format == "llmq") return checked_llmq(file);
    return detected(file);
}

// PREFIX of PREFIX.bin and PREFIX.idx, also when the path is one of these two.
std::string prefix_of(const std::string& path) {
    return path.ends_with(".bin") || path.ends_with(".idx") ? path.substr(0, path.size() - 4) : path;
}
bool is_file(const std::string& path) {
    std::error_code ignored;  // an unreadable file is reported when it is opened
    return std::filesystem::is_regular_file(path, ignored);
}
bool is_megatron(const std::string& path, std::string_view format) {
    if (format != "auto") return format == "megatron";
    return (path.ends_with(".bin") || !is_file(path)) && is_file(prefix_of(path) + ".idx");
}

// The bytes 0 and 1 beside a file of ids.
std::optional<MappedFile> mask_beside(const std::string& bin, int64_t tokens) {
    const std::string path = prefix_of(bin) + ".mask";
    if (!bin.ends_with(".bin") || !is_file(path)) return std::nullopt;
    MappedFile mask(path);
    check<DataError>(size_of(mask) == tokens, path, ": must have one byte for each of the ", tokens, " tokens of ", bin,
                     ", it has ", size_of(mask), "; do the two belong together?");
    return mask;
}

struct Part {
    MappedFile file;
    Layout layout;
    std::optional<MegatronIndex> index;
    int64_t begin = 0;  // its first token in the whole row
    int64_t count = 0;
    std::optional<MappedFile> mask;
    bool bit_mask = false;  // behind the ids, a bit for each, the lowest first

    bool masked() const { return mask || bit_mask; }
};

int64_t tokens_in(const MappedFile& file, const Layout& layout) {
    if (layout.name == kLlmq.name) return word(file, 4);  // a mask may follow the ids
    return (size_of(file) - layout.header_bytes) / layout.id_bytes();
}

Part open_part(const std::string& path, std::string_view format) {
    if (!is_megatron(path, format)) {
        MappedFile file(path);
        const Layout layout = layout_of(file, format);
        return {.file = std::move(file), .layout = layout, .index = std::nullopt, .mask = std::nullopt};
    }
    Part part{.file = MappedFile(prefix_of(path) + ".bin"), .layout = {}, .index = std::nullopt, .mask = {}};
    part.index.emplace(prefix_of(path) + ".idx", part.file);
    part.layout = {"megatron", 0, part.index->type()};
    return part;
}

// Ids that do not fit become -1, which no vocabulary has.
template <class Id>
void widen(const std::byte* stored, std::span<int32_t> out) {
    for (int32_t& id : out) {
        Id value;
        std::memcpy(&value, stored, sizeof value);
        if constexpr (sizeof(Id) == 8)
            id = value >= 0 && value < (int64_t{1} << 31) ? static_cast<int32_t>(value) : -1;
        else
            // NOLINTNEXTLINE(bugprone-signed-char-misuse): the int8 of a Megatron index is a number
            id = static_cast<int32_t>(value);
        stored += sizeof value;
    }
}
void widen(IdType type, const std::byte* stored, std::span<int32_t> out) {
    switch (type) {
        case IdType::u8: return widen<uint8_t>(stored, out);
        case IdType::i8: return widen<int8_t>(stored, out);
        case IdType::u16: return widen<uint16_t>(stored, out);
        case IdType::i16: return widen<int16_t>(stored, out);
        case IdType::u32: return widen<uint32_t>(stored, out);
        case IdType::i32: return widen<int32_t>(stored, out);
        case IdType::i64: return widen<int64_t>(stored, out);
    }
}

class TokenFiles final : public TokenSource {
  public:
    explicit TokenFiles(std::vector<Part> parts) : parts_(std::move(parts)) {}

    int64_t size() const override { return parts_.back().begin + parts_.back().count; }
    std::string_view format() const override { return parts_.front().layout.name; }

    int64_t vocab_bound() const override {
        int64_t bound = 0;
        for (const Part& part : parts_) {
            const IdType type = part.layout.type;
            // An id of a signed type may be negative, which reads as a number near 2^32.
            const bool narrow = type == IdType::u8 || type == IdType::u16;
            bound = std::max(bound, int64_t{1} << (narrow ? 8 * width_of(type) : 32));
        }
        return bound;
    }

    void read(int64_t begin, std::span<int32_t> out) const override {
        check_range(begin, out.size(), size());
        for_parts(begin, out, [](const Part& part, int64_t skip, std::span<int32_t> piece) {
            part.file.check_not_truncated();
            widen(part.layout.type, part.file.bytes().data() + part.layout.header_bytes + skip * part.layout.id_bytes(),
                  piece);
        });
    }

    void document_begins(int64_t begin, int64_t end, std::vector<int64_t>& begins) const override {
        for (auto part = holder(begin); part != parts_.end() && part->begin < end; ++part) {
            if (part->begin > begin) begins.push_back(part->begin);
            if (!part->index) continue;
            const size_t first = begins.size();
            part->index->document_begins(std::max<int64_t>(begin - part->begin, 0), end - part->begin, begins);
            for (size_t i = first; i < begins.size(); ++i) begins[i] += part->begin;
        }
    }
    bool knows_documents() const override { return parts_.front().index.has_value(); }

    bool has_mask() const override {
        return std::any_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.masked(); });
    }
    void read_mask(int64_t begin, std::span<uint8_t> out) const override {
        for_parts(begin, out, [](const Part& part, int64_t skip, std::span<uint8_t> piece) {
            if (part.bit_mask) return read_bits(part, skip, piece);
            if (!part.mask) return std::fill(piece.begin(), piece.end(), uint8_t{1});
            part.mask->check_not_truncated();
            std::memcpy(piece.data(), part.mask->bytes().data() + skip, piece.size());
            const auto bad = std::find_if(piece.begin(), piece.end(), [](uint8_t counts) { return counts > 1; });
            check<DataError>(bad == piece.end(), part.mask->path(), ": byte offset ", skip + (bad - piece.begin()),
                             ": a mask has bytes 0 and 1, got ", bad == piece.end() ? 0 : int{*bad});
        });
    }

    std::string description() const override {
        constexpr size_t kNamed = 3;
        std::string text = concat(format(), ", ", size(), " tokens", has_mask() ? " with a loss mask" : "", ": ");
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
                      part->layout.header_bytes + local * part->layout.id_bytes(), ")");
    }

  private:
    static void read_bits(const Part& part, int64_t skip, std::span<uint8_t> out) {
        part.file.check_not_truncated();
        const std::byte* bits = part.file.bytes().data() + part.layout.header_bytes + 4 * part.count;
        for (size_t i = 0; i < out.size(); ++i) {
            const int64_t at = skip + static_cast<int64_t>(i);
            out[i] = std::to_integer<uint8_t>(bits[at / 8] >> (at % 8)) & 1;
        }
    }
    // The part that holds the token; for the token after the last one, the last part.
    std::vector<Part>::const_iterator holder(int64_t token) const {
        return std::prev(std::upper_bound(parts_.begin(), parts_.end(), token,
                                          [](int64_t t, const Part& part) { return t < part.begin; }));
    }

    // action(part, first token in it, piece of out) for what `out` takes from each part.
    template <class T, class Action>
    void for_parts(int64_t begin, std::span<T> out, Action&& action) const {
        for (auto part = holder(begin); !out.empty(); ++part) {
            const int64_t skip = begin - part->begin;
            const auto piece = out.first(std::min(out.size(), to_size(part->count - skip)));
            action(*part, skip, piece);
            begin += static_cast<int64_t>(piece.size());
            out = out.subspan(piece.size());
        }
    }

    std::vector<Part> parts_;
};

constexpr int64_t kBlock = 32 * 1024;  // tokens; 128 KiB of ids stays in the second-level cache
constexpr int64_t kBlocks = 256;

struct HashState {
    XXH3_state_t* state = XXH3_createState();
    HashState() { check(state != nullptr && XXH3_64bits_reset(state) == XXH_OK, "XXH3: no memory for its state"); }
    ~HashState() { XXH3_freeState(state); }
    HashState(const HashState&) = delete;
    HashState& operator=(const HashState&) = delete;
};

}  // namespace

void check_range(int64_t begin, size_t count, int64_t size) {
    const int64_t end = begin + static_cast<int64_t>(count);
    check(begin >= 0 && end <= size, "tokens [", begin, ", ", end, ") of ", size);
}

void check_one_format(const std::string& path, std::string_view format, const std::string& first,
                      std::string_view first_format) {
    check<UsageError>(format == first_format, path, ": is ", format, " data, but ", first, " is ", first_format,
                      "; the files of one run have one format, so that they share one vocabulary; "
                      "`tutti data tokenize` makes token files of both");
}

std::shared_ptr<const TokenSource> open_tokens(const std::vector<std::string>& paths, std::string_view format) {
    check<UsageError>(!paths.empty(), "no data file is named; set data.train = [\"corpus.txt\"]");
    const std::vector<std::string> formats = spec::data_formats();
    check<UsageError>(format != "jsonl" && std::ranges::count(formats, format) > 0, "data.format must be one of ",
                      joined(formats), ", got \"", format, "\"");
    std::vector<Part> parts;
    int64_t total = 0;
    for (const auto& path : paths) {
        Part part = open_part(path, format);
        if (!parts.empty()) check_one_format(path, part.layout.name, paths.front(), parts.front().layout.name);
        part.begin = total;
        part.count = tokens_in(part.file, part.layout);
        part.bit_mask = part.layout.name == kLlmq.name && llmq_mask(part.file) != 0;
        if (!part.bit_mask) part.mask = mask_beside(part.file.path(), part.count);
        total += part.count;
        parts.push_back(std::move(part));
    }
    return std::make_shared<TokenFiles>(std::move(parts));
}

void visit_sample(const TokenSource& source, int64_t begin, int64_t end,
                  const std::function<void(int64_t, std::span<const int32_t>)>& visit) {
    check(0 <= begin && begin <= end && end <= source.size(), "sample of tokens [", begin, ", ", end, ") of ",
          source.size());
    const int64_t size = end - begin;
    std::vector<int32_t> ids(to_size(std::min(size, kBlock)));
    const auto visit_block = [&](int64_t first, int64_t count) {
        const auto block = std::span(ids).first(to_size(count));
        source.read(first, block);
        visit(first, block);
    };
    if (size <= kBlock * kBlocks)
        for (int64_t at = 0; at < size; at += kBlock) visit_block(begin + at, std::min(kBlock, size - at));
    else
        for (int64_t k = 0; k < kBlocks; ++k) visit_block(begin + (size - kBlock) * k / (kBlocks - 1), kBlock);
}

uint64_t fingerprint(const TokenSource& source, int64_t begin, int64_t end) {
    const HashState hash;
    const int64_t size = end - begin;
    XXH3_64bits_update(hash.state, &size, sizeof size);
    visit_sample(source, begin, end, [&](int64_t, std::span<const int32_t> ids) {
        XXH3_64bits_update(hash.state, ids.data(), ids.size_bytes());
    });
    return XXH3_64bits_digest(hash.state);
}

uint64_t TokenSource::fingerprint() const { return data::fingerprint(*this, 0, size()); }

}  // namespace tutti::data
