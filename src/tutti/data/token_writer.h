// data/token_writer.h: writes token files in the formats of nanoGPT, llm.c and Megatron (layouts: token_source.h) with
// the identity of their tokenizer, and files that appear under their name only when complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/data/encode_files.h"

namespace tutti::data {

// Removes the files and directories PATH.….part that no process locks: leftovers of killed processes. Locks hold on all
// hosts that share the file system.
void remove_unfinished(const std::string& path);

// Opens or creates a file and locks it. Returns -1, with the reason in errno, on failure.
int open_locked(const std::string& path);
inline constexpr const char* kUnfinished = ".part";
inline constexpr const char* kLockOfFolder = "lock";  // the file that is locked in a folder under construction

// A file that appears under its name only when complete.
class AtomicFile {
  public:
    // Opens a temporary file beside `path`, which the next AtomicFile of `path` removes after a kill. UsageError where
    // nothing can be made there. `advice` ends each message.
    explicit AtomicFile(std::string path,
                        std::string advice = "choose a folder that is there, has room and may be written");
    ~AtomicFile();  // removes the temporary file unless commit() was called
    AtomicFile(const AtomicFile&) = delete;
    AtomicFile& operator=(const AtomicFile&) = delete;

    const std::string& path() const { return path_; }
    // These three throw DataError with the system's reason, such as a full disk.
    void write(const void* bytes, size_t size);  // at the end
    void write_at(int64_t offset, const void* bytes, size_t size);
    void commit();  // syncs and renames

  private:
    [[nodiscard]] std::string problem(int error) const;

    std::string path_, temporary_, advice_;
    int descriptor_ = -1;
    int64_t size_ = 0;
    bool committed_ = false;
};

// Writes PREFIX.bin, for megatron PREFIX.idx too, and PREFIX.mask when some tokens are not targets. The files appear
// under their names only when all of them are complete.
class TokenWriter {
  public:
    // `format` is nanogpt (ids below 65536), llmc or megatron. UsageError when the format cannot hold ids up to
    // vocab - 1, the folder cannot be written, or an .idx or .mask of other ids stands beside PREFIX.bin.
    TokenWriter(const std::string& format, const std::string& prefix, int64_t vocab);

    void append(const EncodedPiece& piece);
    std::vector<std::string> finish();  // returns the paths
    // Any thread, of a process that is about to end: removes the unfinished files.
    void discard() const;

    int64_t tokens() const { return tokens_; }
    int64_t documents() const { return documents_; }
    int64_t masked_tokens() const { return masked_tokens_; }

  private:
    void write_ids(const std::vector<int32_t>& ids);
    void append_mask(const EncodedPiece& piece);
    void append_lengths(const EncodedPiece& piece);
    void write_header();
    void write_index();

    std::string format_, prefix_;
    int64_t width_ = 2;  // bytes of an id
    AtomicFile bin_;
    std::unique_ptr<AtomicFile> mask_;
    int64_t tokens_ = 0, documents_ = 0, masked_tokens_ = 0;
    std::vector<int32_t> lengths_;  // megatron: tokens of each document
    std::vector<uint16_t> narrow_;
};

// The tokenizer of a token file, kept beside it as PREFIX.tokenizer.
struct TokenizerIdentity {
    uint64_t fingerprint = 0;  // Tokenizer::fingerprint()
    std::string description;
};
void write_tokenizer_identity(const std::string& prefix, const TokenizerIdentity& tokenizer);
// `path`: a PREFIX.bin, or a Megatron prefix. Nullopt when no such file is there; DataError when it is damaged.
std::optional<TokenizerIdentity> read_tokenizer_identity(const std::string& path);

}  // namespace tutti::data
