// checkpoint/checkpoint_reader.h: reads the files of one checkpoint, from any source, and compares every chunk with its
// digest while reading, so that a good checkpoint is read once and a damaged one is never used.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/checkpoint/file_system.h"
#include "tutti/checkpoint/manifest.h"
#include "tutti/checkpoint/safetensors.h"
#include "tutti/checkpoint/state_source.h"

namespace tutti::checkpoint {

class VerifiedFile final : public ByteSource {
  public:
    // DamagedError if the file has another size than the record.
    VerifiedFile(std::shared_ptr<ByteSource> file, const FileRecord& record);

    const std::string& path() const override { return file_->path(); }
    int64_t size() const override { return record_.size; }
    // DamagedError if a chunk of this range differs from the written bytes; `bytes` may be partly overwritten then.
    void read(int64_t offset, std::span<std::byte> bytes) override;
    // Reads and checks the chunks that no read() has covered.
    void verify_rest();
    void leave_to_others() { verified_.assign(verified_.size(), true); }  // verify_rest() has nothing left to do
    // Checks all chunks and the digest of the whole file, read from the disk and not from the cache.
    void verify_all();

  private:
    std::span<const std::byte> cached(int64_t chunk);
    void check_chunk(int64_t chunk, std::span<const std::byte> bytes);
    int64_t chunk_size(int64_t chunk) const;

    std::shared_ptr<ByteSource> file_;
    FileRecord record_;
    std::vector<bool> verified_;
    std::vector<std::byte> cache_;  // the last chunk that was read in part
    int64_t cached_chunk_ = -1;
};

class CheckpointReader {
  public:
    // Reads the manifest and opens every file of the checkpoint. DamagedError if one is missing.
    explicit CheckpointReader(std::shared_ptr<StateSource> source);
    CheckpointReader(FileSystem& file_system, std::string path)
        : CheckpointReader(std::make_shared<DirectorySource>(file_system, std::move(path))) {}

    const std::string& path() const { return source_->path(); }
    const Manifest& manifest() const { return manifest_; }
    // The file with this name, or DataError. The file stays usable after the reader is destroyed.
    std::shared_ptr<ByteSource> file(std::string_view name) const;
    SafetensorsFile safetensors(std::string_view name) const { return SafetensorsFile(file(name)); }

    // For n readers of one checkpoint: reader r checks the unread chunks of files r, r + n, r + 2n, ..., so that
    // together the readers check everything.
    void verify_share(int reader, int readers) const;
    void verify_rest() const;
    void verify_all() const;

  private:
    std::shared_ptr<StateSource> source_;
    Manifest manifest_;
    std::map<std::string, std::shared_ptr<VerifiedFile>, std::less<>> files_;
};

}  // namespace tutti::checkpoint
