#include "tutti/device/cpu/file_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "tutti/base/error.h"

namespace tutti {

namespace {

int64_t whole_pages(int64_t bytes) {
    const int64_t page = sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

int open_nameless(const std::string& directory) {
    const int file = open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return file;
    std::string name = directory + "/offload-XXXXXX";  // a file system that has no O_TMPFILE
    const int named = mkostemp(name.data(), O_CLOEXEC);
    if (named >= 0) unlink(name.c_str());
    return named;
}

}  // namespace

FileMemory::FileMemory(const std::string& directory) : directory_(directory) {
    std::error_code error;
    std::filesystem::create_directories(directory, error);
    check<UsageError>(!error, "offload.dir ", directory, ": cannot be made: ", error.message());
    file_ = open_nameless(directory);
    check<UsageError>(file_ >= 0, "offload.dir ", directory, ": no file can be made there: ", std::strerror(errno));
}

FileMemory::~FileMemory() { close(file_); }

void* FileMemory::take(int64_t bytes) {
    const int64_t size = whole_pages(bytes);
    if (posix_fallocate(file_, size_, size) != 0) return nullptr;
    void* data = mmap(nullptr, static_cast<size_t>(size), PROT_READ | PROT_WRITE, MAP_SHARED, file_, size_);
    if (data == MAP_FAILED) return nullptr;
    offsets_[data] = size_;
    size_ += size;
    return data;
}

void FileMemory::give_back(void* data, int64_t bytes) {
    const int64_t size = whole_pages(bytes);
    munmap(data, static_cast<size_t>(size));
    // Without holes in files the space comes back with the end of the process.
    fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offsets_.at(data), size);
    offsets_.erase(data);
}

void FileMemory::will_need(void* data, int64_t bytes) {
    madvise(data, static_cast<size_t>(whole_pages(bytes)), MADV_WILLNEED);  // advice: refusal changes nothing
}

std::string FileMemory::advice() const {
    return concat("the disk of offload.dir ", directory_, " is full: free some of it, or name another directory");
}

}  // namespace tutti
