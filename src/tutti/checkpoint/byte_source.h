// checkpoint/byte_source.h: bytes that can be read at any offset: a plain file, or a file of a checkpoint whose chunks
// are compared with their digests as they are read (verified_file.h). SafetensorsFile reads from either.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "tutti/checkpoint/file.h"

namespace tutti::checkpoint {

class ByteSource {
  public:
    virtual ~ByteSource() = default;
    virtual const std::string& path() const = 0;
    virtual int64_t size() const = 0;
    virtual void read(int64_t offset, std::span<std::byte> bytes) = 0;  // all of them, or it throws
};

// pread, not mmap: a file that is truncated under a mapping kills the process with SIGBUS.
class PlainFile final : public ByteSource {
  public:
    PlainFile(FileSystem& file_system, const std::string& path)
        : file_(File::open(file_system, path)), size_(file_.size()) {}
    const std::string& path() const override { return file_.path(); }
    int64_t size() const override { return size_; }
    void read(int64_t offset, std::span<std::byte> bytes) override { file_.read_all(bytes, offset); }

  private:
    File file_;
    int64_t size_;
};

}  // namespace tutti::checkpoint
