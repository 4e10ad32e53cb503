// data/token_writer.h: token files in the formats that other trainers read: nanoGPT, llm.c, Megatron (token_source.h
// has the layouts).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tutti/data/encode_files.h"
#include "tutti/data/new_file.h"

namespace tutti::data {

// Writes PREFIX.bin, for megatron PREFIX.idx too, and PREFIX.mask when some tokens are only read. The files appear
// under their names when all is written, and only then.
class TokenWriter {
  public:
    // `format` is nanogpt (ids below 65536), llmc or megatron. UsageError when the format cannot hold ids up to
    // vocab - 1, the folder cannot be written, or an .idx or .mask of something else would stay beside PREFIX.bin.
    TokenWriter(const std::string& format, const std::string& prefix, int64_t vocab);

    void append(const EncodedPiece& piece);
    std::vector<std::string> finish();  // the paths

    int64_t tokens() const { return tokens_; }
    int64_t documents() const { return documents_; }
    int64_t only_read() const { return only_read_; }

  private:
    void write_ids(const std::vector<int32_t>& ids);
    void append_mask(const EncodedPiece& piece);
    void append_lengths(const EncodedPiece& piece);
    void write_header();
    void write_index();

    std::string format_, prefix_;
    int64_t width_ = 2;  // bytes of an id
    NewFile bin_;
    std::unique_ptr<NewFile> mask_;
    int64_t tokens_ = 0, documents_ = 0, only_read_ = 0;
    std::vector<int32_t> lengths_;  // megatron: tokens of each document
    std::vector<uint16_t> narrow_;
};

}  // namespace tutti::data
