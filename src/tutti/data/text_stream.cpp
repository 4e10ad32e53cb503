// data/text_stream.cpp: stored bytes, then a stream for each compression. The only file that includes zlib and
// Zstandard.
#include "tutti/data/text_stream.h"

#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <array>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/read_file.h"
#include "tutti/base/strings.h"
#include "tutti/base/to_size.h"

namespace tutti::data {

namespace {

struct Compression {
    std::string_view name, ending, magic;
};
constexpr std::array kCompressions = {Compression{"gzip", ".gz", {"\x1f\x8b", 2}},
                                      Compression{"Zstandard", ".zst", {"\x28\xb5\x2f\xfd", 4}}};

// The bytes of a file or of standard input, as they are stored, a block at a time.
class Stored {
  public:
    explicit Stored(const std::string& path)
        : name_(path == kStandardInput ? "standard input" : path),
          owned_(path != kStandardInput),
          descriptor_(owned_ ? open_regular(path).descriptor : STDIN_FILENO) {}
    ~Stored() {
        if (owned_) ::close(descriptor_);
    }
    Stored(const Stored&) = delete;
    Stored& operator=(const Stored&) = delete;

    // Bytes that were read and not taken yet; empty at the end only.
    std::string_view rest() {
        if (at_ == filled_ && !ended_) fill();
        return {block_.data() + at_, filled_ - at_};
    }
    void take(size_t size) { at_ += size; }
    // The first bytes of the file, before any is taken: as many as the longest magic number, where there are so many.
    std::string_view beginning() {
        while (filled_ < 4 && !ended_) fill();
        return rest();
    }
    int64_t offset() const { return read_ - static_cast<int64_t>(filled_ - at_); }  // of the next byte
    int64_t read() const { return read_; }
    const std::string& name() const { return name_; }

    // "corpus.gz: byte 4711: "
    std::string place() const { return concat(name_, ": byte ", offset(), ": "); }

  private:
    // Reads more bytes behind those in the block; at its start when all were taken.
    void fill() {
        if (at_ == filled_) at_ = filled_ = 0;
        const ssize_t got =
            retried([&] { return ::read(descriptor_, block_.data() + filled_, block_.size() - filled_); });
        const int error = errno;
        check<DataError>(got >= 0, place(), "cannot be read: ", system_reason(error));
        ended_ = got == 0;
        filled_ += to_size(got);
        read_ += got;
    }

    std::string name_;
    bool owned_;
    int descriptor_;
    std::vector<char> block_ = std::vector<char>(256 << 10);
    size_t at_ = 0, filled_ = 0;
    int64_t read_ = 0;
    bool ended_ = false;
};

class PlainStream final : public TextStream {
  public:
    explicit PlainStream(std::unique_ptr<Stored> stored) : stored_(std::move(stored)) {}

    size_t read(char* out, size_t size) override {
        const std::string_view rest = stored_->rest().substr(0, size);
        std::copy(rest.begin(), rest.end(), out);
        stored_->take(rest.size());
        return rest.size();
    }
    int64_t stored() const override { return stored_->read(); }

  private:
    std::unique_ptr<Stored> stored_;
};

[[noreturn]] void ends_early(const Stored& stored, std::string_view what) {
    throw DataError(
        concat(stored.name(), ": ends after ", stored.read(), " bytes inside ", what,
               ", so its end is missing: it was cut off, or is not written to its end; get the whole file again"));
}

class GzipStream final : public TextStream {
  public:
    explicit GzipStream(std::unique_ptr<Stored> stored) : stored_(std::move(stored)) {
        constexpr int kLargestWindow = 15, kGzipOnly = 16;
        check(inflateInit2(&inflater_, kLargestWindow + kGzipOnly) == Z_OK, "zlib cannot be set up: no memory");
    }
    ~GzipStream() override { inflateEnd(&inflater_); }

    size_t read(char* out, size_t size) override {
        size = std::min(size, size_t{1} << 30);  // zlib counts in 32 bits
        inflater_.next_out = reinterpret_cast<Bytef*>(out);
        inflater_.avail_out = static_cast<uInt>(size);
        while (inflater_.avail_out == size) {
            const std::string_view rest = stored_->rest();
            if (rest.empty() && between_members_) return 0;
            if (rest.empty()) ends_early(*stored_, "a member of gzip");
            inflater_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(rest.data()));
            inflater_.avail_in = static_cast<uInt>(rest.size());
            const int result = inflate(&inflater_, Z_NO_FLUSH);
            stored_->take(rest.size() - inflater_.avail_in);
            check<DataError>(result == Z_OK || result == Z_STREAM_END, stored_->place(),
                             between_members_ ? "required the next member of gzip, or the end; zlib says: "
                                              : "the compressed data is damaged; zlib says: ",
                             inflater_.msg != nullptr ? inflater_.msg : zError(result));
            between_members_ = result == Z_STREAM_END;
            if (between_members_) inflateReset(&inflater_);
        }
        return size - inflater_.avail_out;
    }
    int64_t stored() const override { return stored_->read(); }

  private:
    std::unique_ptr<Stored> stored_;
    z_stream inflater_ = {};
    bool between_members_ = false;
};

class ZstandardStream final : public TextStream {
  public:
    explicit ZstandardStream(std::unique_ptr<Stored> stored) : stored_(std::move(stored)) {
        check(decompressor_ != nullptr, "Zstandard cannot be set up: no memory");
    }
    ~ZstandardStream() override { ZSTD_freeDStream(decompressor_); }

    size_t read(char* out, size_t size) override {
        ZSTD_outBuffer to{out, size, 0};
        while (to.pos == 0) {
            const std::string_view rest = stored_->rest();
            if (rest.empty() && between_frames_) return 0;
            ZSTD_inBuffer from{rest.data(), rest.size(), 0};
            const size_t result = ZSTD_decompressStream(decompressor_, &to, &from);
            stored_->take(from.pos);
            if (ZSTD_isError(result)) fail(result);
            if (rest.empty() && to.pos == 0) ends_early(*stored_, "a frame of Zstandard");
            between_frames_ = result == 0;
        }
        return to.pos;
    }
    int64_t stored() const override { return stored_->read(); }

  private:
    [[noreturn]] void fail(size_t result) const {
        if (ZSTD_getErrorCode(result) == ZSTD_error_frameParameter_windowTooLarge)
            throw DataError(concat(stored_->place(), "a frame of Zstandard needs a window of more than 128 MiB ",
                                   "(made with --long); decompress it into a pipe: zstd -dc --long=31 ",
                                   quoted_for_shell(stored_->name()), " | tutti data tokenize - ..."));
        throw DataError(concat(stored_->place(),
                               between_frames_ ? "required the next frame of Zstandard, or the end; Zstandard says: "
                                               : "the compressed data is damaged; Zstandard says: ",
                               ZSTD_getErrorName(result)));
    }

    std::unique_ptr<Stored> stored_;
    ZSTD_DStream* decompressor_ = ZSTD_createDStream();
    bool between_frames_ = false;
};

}  // namespace

std::string_view compression_of(std::string_view beginning) {
    // A skippable frame, with which parallel and seekable compressors may begin.
    const bool skippable =
        beginning.size() >= 4 && (beginning[0] & 0xf0) == 0x50 && beginning.substr(1, 3) == "\x2a\x4d\x18";
    if (skippable) return kCompressions[1].name;
    for (const Compression& c : kCompressions)
        if (beginning.starts_with(c.magic)) return c.name;
    return "";
}

std::string_view without_byte_order_mark(std::string_view text) {
    constexpr std::string_view kMark = "\xef\xbb\xbf";
    return text.substr(text.starts_with(kMark) ? kMark.size() : 0);
}

std::string_view uncompressed_name(std::string_view path) {
    for (const Compression& c : kCompressions)
        if (path.ends_with(c.ending)) return path.substr(0, path.size() - c.ending.size());
    return path;
}

std::unique_ptr<TextStream> open_text_stream(const std::string& path) {
    auto stored = std::make_unique<Stored>(path);
    const std::string_view beginning = stored->beginning(), compression = compression_of(beginning);
    for (const Compression& c : kCompressions)
        check<DataError>(!path.ends_with(c.ending) || compression == c.name, path, ": is named ", c.ending,
                         ", but does not begin as data of ", c.name, " does; rename it to what it is, or get it again");
    if (compression == kCompressions[0].name) return std::make_unique<GzipStream>(std::move(stored));
    if (compression == kCompressions[1].name) return std::make_unique<ZstandardStream>(std::move(stored));
    return std::make_unique<PlainStream>(std::move(stored));
}

}  // namespace tutti::data
