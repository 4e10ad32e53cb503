#include "tutti/data/new_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tutti/base/error.h"
#include "tutti/base/retried.h"

namespace tutti::data {

NewFile::NewFile(std::string path, const std::string& advice)
    : path_(std::move(path)), temporary_(concat(path_, ".", ::getpid(), ".part")) {
    constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
    descriptor_ = retried([&] { return ::open(temporary_.c_str(), kFlags, 0644); });
    check<UsageError>(descriptor_ >= 0, path_, ": cannot be written (", std::strerror(errno), "): ", advice);
}

NewFile::~NewFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (!committed_ && descriptor_ >= 0) ::unlink(temporary_.c_str());
}

void NewFile::write(const void* bytes, size_t size) {
    write_at(size_, bytes, size);
    size_ += static_cast<int64_t>(size);
}

void NewFile::write_at(int64_t offset, const void* bytes, size_t size) {
    const char* from = static_cast<const char*>(bytes);
    while (size > 0) {
        const ssize_t done = retried([&] { return ::pwrite(descriptor_, from, size, offset); });
        check<DataError>(done > 0, temporary_, ": cannot be written: ", std::strerror(errno));
        from += done;
        offset += done;
        size -= static_cast<size_t>(done);
    }
}

void NewFile::commit() {
    const bool synced = ::fsync(descriptor_) == 0;  // by itself: errno is read with the other arguments
    check<DataError>(synced, temporary_, ": cannot be synced: ", std::strerror(errno));
    const bool renamed = ::rename(temporary_.c_str(), path_.c_str()) == 0;
    check<DataError>(renamed, temporary_, ": cannot be renamed to ", path_, ": ", std::strerror(errno));
    committed_ = true;
}

}  // namespace tutti::data
