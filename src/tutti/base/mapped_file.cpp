// base/mapped_file.cpp: open, fstat, mmap, with an error for each way in which they fail.
#include "tutti/base/mapped_file.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/read_file.h"

namespace tutti {

MappedFile::MappedFile(const std::string& path) : path_(path) {
    try {
        const RegularFile file = open_regular(path);
        descriptor_ = file.descriptor;
        check<DataError>(file.size > 0, path, ": is empty (0 bytes)");

        const auto size = static_cast<size_t>(file.size);
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
    const int64_t begin = (offset + page - 1) / page * page, end = (offset + size) / page * page;
    if (begin < end)
        ::madvise(const_cast<std::byte*>(bytes_.data()) + begin, static_cast<size_t>(end - begin), MADV_DONTNEED);
}

void MappedFile::check_not_truncated() const {
    struct stat status {};
    const bool known = ::fstat(descriptor_, &status) == 0;  // by itself: errno is read with the other arguments
    check<DataError>(known, path_, ": cannot read its size: ", system_reason(errno));
    check<DataError>(static_cast<size_t>(status.st_size) >= bytes_.size(), path_, ": was cut from ", bytes_.size(),
                     " to ", status.st_size, " bytes while in use; restore it and start again");
}

}  // namespace tutti
