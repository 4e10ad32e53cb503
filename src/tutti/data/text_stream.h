// data/text_stream.h: a text as a stream of bytes: from a file, plain or compressed by gzip or Zstandard, or from
// standard input. Memory does not grow with the text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace tutti::data {

class TextStream {
  public:
    virtual ~TextStream() = default;
    // Writes up to `size` bytes of the text to `out` and returns their number; 0 at the end only. DataError with the
    // file and the offset in it: a read that failed, compressed data that is damaged or ends early.
    virtual size_t read(char* out, size_t size) = 0;
    virtual int64_t stored() const = 0;  // bytes of the file, compressed or not, that have been read
};

constexpr std::string_view kStandardInput = "-";  // as a path

// The first bytes tell whether a text is compressed: no text in UTF-8 begins with them. Members of gzip (RFC 1952) and
// frames of Zstandard (RFC 8878, windows up to 128 MiB) follow one another. DataError for a path that cannot be read,
// and for a name *.gz or *.zst whose content is not what the name says.
std::unique_ptr<TextStream> open_text_stream(const std::string& path);

// "gzip", "Zstandard" or "": the compression of data that begins with these bytes.
std::string_view compression_of(std::string_view beginning);

// The text without a leading byte order mark, which Windows editors write. The mark is not part of the text
// (Unicode 16.0, section 23.8) and must not become a token; Python's utf-8-sig does the same.
std::string_view without_byte_order_mark(std::string_view text);

// "a.jsonl" of "a.jsonl.zst": the name without the ending of a compression.
std::string_view uncompressed_name(std::string_view path);

}  // namespace tutti::data
