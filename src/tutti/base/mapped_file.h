// base/mapped_file.h: a file mapped read-only for as long as this object lives. Token files and texts are read through
// it (data/), and the weights of Hugging Face directories (checkpoint/posix_file_system.cpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace tutti {

class MappedFile {
  public:
    // Throws DataError (path and the system's reason) when the path is missing, a directory, not a regular file,
    // unreadable or empty.
    explicit MappedFile(const std::string& path);
    ~MappedFile();
    MappedFile(MappedFile&& other) noexcept;
    MappedFile& operator=(MappedFile&& other) noexcept;
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;

    const std::string& path() const { return path_; }
    std::span<const std::byte> bytes() const { return bytes_; }

    // Throws DataError when the file became shorter than what was mapped. A read past the new end would kill the whole
    // process with SIGBUS; one fstat before each read (0.2 us) turns nearly every such case into a message.
    // (What it cannot catch: a cut between the two, and an I/O error of the disk.)
    void check_not_truncated() const;

    // Bytes [offset, offset + size) will not be read again soon: their whole pages leave this process's memory, so that
    // reading a file once does not cost its size. They come back when they are read all the same.
    void forget(int64_t offset, int64_t size) const noexcept;

  private:
    void release() noexcept;

    std::string path_;
    int descriptor_ = -1;
    std::span<const std::byte> bytes_;
};

}  // namespace tutti
