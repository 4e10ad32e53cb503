#include "tutti/base/read_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "tutti/base/ceil_div.h"
#include "tutti/base/error.h"
#include "tutti/base/to_size.h"

namespace tutti {

namespace {

// The working directory, if the path is relative: the usual cause of a missing file.
std::string tried_from(const std::string& path) {
    std::error_code ignored;  // without a working directory there is no hint
    const auto folder = std::filesystem::current_path(ignored);
    return std::filesystem::path(path).is_absolute() || ignored ? "" : concat("; tried from ", folder.string());
}

// Closes the descriptor on failure.
RegularFile checked(int descriptor, const std::string& path) {
    try {
        struct stat status {};
        const bool known = ::fstat(descriptor, &status) == 0;  // before the arguments of check read errno
        check<DataError>(known, path, ": cannot read its size: ", system_reason(errno));
        check<DataError>(!S_ISDIR(status.st_mode), path, ": is a directory; name the files in it");
        check<DataError>(S_ISREG(status.st_mode), path,
                         ": is not a regular file (a pipe, device or socket); copy it to one");
        return {descriptor, status.st_size};
    } catch (...) {
        ::close(descriptor);
        throw;
    }
}

// O_NONBLOCK, or opening a FIFO without a writer would block. The flag has no effect on regular files.
int open_to_read(const std::string& path) {
    return retried([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); });
}

std::string content(const RegularFile& file, const std::string& path) {
    std::string text(to_size(file.size), '\0');
    size_t filled = 0;
    ssize_t got = 1;
    while (filled < text.size() && got > 0) {
        got = retried([&] { return ::read(file.descriptor, text.data() + filled, text.size() - filled); });
        if (got > 0) filled += to_size(got);
    }
    const int error = errno;
    ::close(file.descriptor);
    check<DataError>(got >= 0, path, ": cannot read: ", system_reason(error));
    text.resize(filled);
    return text;
}

}  // namespace

std::string system_reason(int error) { return concat(std::generic_category().message(error), " (errno ", error, ")"); }

RegularFile open_regular(const std::string& path) {
    const int descriptor = open_to_read(path);
    check<DataError>(descriptor >= 0, path, ": cannot open: ", system_reason(errno), tried_from(path));
    return checked(descriptor, path);
}

std::string read_file(const std::string& path) { return content(open_regular(path), path); }

std::optional<std::string> read_file_if_there(const std::string& path) {
    std::error_code error;
    if (std::filesystem::status(path, error).type() == std::filesystem::file_type::not_found) return std::nullopt;
    return read_file(path);
}

std::optional<std::string> read_file_if_readable(const std::string& path) {
    try {
        return read_file_if_there(path);
    } catch (const DataError&) {
        return std::nullopt;
    }
}

MappedFile::MappedFile(const std::string& path) : path_(path) {
    try {
        const RegularFile file = open_regular(path);
        descriptor_ = file.descriptor;
        check<DataError>(file.size > 0, path, ": is empty (0 bytes)");

        const auto size = to_size(file.size);
        void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor_, 0);
        check<DataError>(address != MAP_FAILED, path, ": cannot map ", size, " bytes: ", system_reason(errno));
        bytes_ = {static_cast<const std::byte*>(address), size};
    } catch (...) {
        release();
        throw;
    }
}

MappedFile::~MappedFile() { release(); }

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
    if (this == &other) return *this;
    release();
    path_ = std::move(other.path_);
    descriptor_ = std::exchange(other.descriptor_, -1);
    bytes_ = std::exchange(other.bytes_, {});
    return *this;
}

void MappedFile::release() noexcept {
    if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
    if (descriptor_ >= 0) ::close(descriptor_);
    bytes_ = {};
    descriptor_ = -1;
}

void MappedFile::forget(int64_t offset, int64_t size) const noexcept {
    const auto page = static_cast<int64_t>(::sysconf(_SC_PAGESIZE));
    const int64_t begin = round_up(offset, page), end = (offset + size) / page * page;
    if (begin < end) ::madvise(const_cast<std::byte*>(bytes_.data()) + begin, to_size(end - begin), MADV_DONTNEED);
}

void MappedFile::check_not_truncated() const {
    struct stat status {};
    const bool known = ::fstat(descriptor_, &status) == 0;  // before the arguments of check read errno
    check<DataError>(known, path_, ": cannot read its size: ", system_reason(errno));
    check<DataError>(to_size(status.st_size) >= bytes_.size(), path_, ": was cut from ", bytes_.size(), " to ",
                     status.st_size, " bytes while in use; restore it and start again");
}

}  // namespace tutti
