// base/read_file.h: regular files, read whole or memory-mapped. A file that cannot be opened is a DataError with the
// path and the system's reason; pipes, devices and sockets are refused, since reading them may block.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tutti/base/error.h"

namespace tutti {

std::string system_reason(int error);  // "Permission denied (errno 13)"

// Whether the disk keeps from writing, and not the place: no space, no inode, a fault.
inline bool is_of_disk(int error) { return error == ENOSPC || error == EDQUOT || error == EIO; }
// For what cannot be made or written because of `error`: DataError of the disk, else UsageError.
template <class... Parts>
void check_written(bool ok, int error, const Parts&... parts) {
    if (is_of_disk(error)) check<DataError>(ok, parts...);
    check<UsageError>(ok, parts...);
}

// The caller closes the descriptor.
struct RegularFile {
    int descriptor = -1;
    int64_t size = 0;
};
RegularFile open_regular(const std::string& path);

std::string read_file(const std::string& path);
// nullopt if no such file exists.
std::optional<std::string> read_file_if_there(const std::string& path);
// nullopt also if the file cannot be read.
std::optional<std::string> read_file_if_readable(const std::string& path);

// A read-only memory-mapped file.
class MappedFile {
  public:
    // DataError also for an empty file.
    explicit MappedFile(const std::string& path);
    ~MappedFile();
    MappedFile(MappedFile&& other) noexcept;
    MappedFile& operator=(MappedFile&& other) noexcept;
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;

    const std::string& path() const { return path_; }
    std::span<const std::byte> bytes() const { return bytes_; }
    std::string_view text() const { return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()}; }

    // Throws DataError if the file has become shorter than the mapping: a read past the new end would kill the process
    // with SIGBUS. To be called before each read (one fstat, 0.2 us). A truncation between fstat and read, and an I/O
    // error of the disk, still kill the process.
    void check_not_truncated() const;

    // Drops the whole pages of bytes [offset, offset + size) from this process's memory; a later read loads them again.
    void forget(int64_t offset, int64_t size) const noexcept;

  private:
    void release() noexcept;

    std::string path_;
    int descriptor_ = -1;
    std::span<const std::byte> bytes_;
};

// Repeats a system call while it is interrupted by a signal (EINTR), such as the one that tells a run to stop. Needed
// even for files: calls of network file systems are interruptible. Not for close(), which frees the descriptor even
// then.
template <class Call>
auto retried(Call call) {
    for (;;) {
        const auto result = call();
        if (result != -1 || errno != EINTR) return result;
    }
}

}  // namespace tutti
