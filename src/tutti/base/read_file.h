// base/read_file.h: regular files, read whole or mapped. A file that cannot be opened is a DataError with the path and
// the system's reason; a pipe, device or socket is refused, so that no read waits for one.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace tutti {

std::string system_reason(int error);  // of an errno: "Permission denied (errno 13)"

// The caller closes the descriptor.
struct RegularFile {
    int descriptor = -1;
    int64_t size = 0;
};
RegularFile open_regular(const std::string& path);

std::string read_file(const std::string& path);
// nullopt where no such file exists.
std::optional<std::string> read_file_if_there(const std::string& path);

// A file mapped read-only for as long as this object lives.
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
    std::string_view text() const { return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()}; }

    // Throws DataError when the file became shorter than the mapping. A read past the new end would kill the whole
    // process with SIGBUS; one fstat before each read (0.2 us) turns nearly every such case into a message. Two cases
    // remain: a truncation between fstat and read, and an I/O error of the disk.
    void check_not_truncated() const;

    // Drops the whole pages of bytes [offset, offset + size) from this process's memory, so that reading a file once
    // does not cost its size. A later read loads the pages again.
    void forget(int64_t offset, int64_t size) const noexcept;

  private:
    void release() noexcept;

    std::string path_;
    int descriptor_ = -1;
    std::span<const std::byte> bytes_;
};

// Repeats a system call while a signal interrupts the call (EINTR). A signal arrives whenever a run is told to stop,
// and network file systems pass signals on even where a local disk never would. Not for close(), which frees the
// descriptor even then.
template <class Call>
auto retried(Call call) {
    for (;;) {
        const auto result = call();
        if (result != -1 || errno != EINTR) return result;
    }
}

}  // namespace tutti
