// checkpoint/file_system.cpp: FileSystem on Linux, each function one system call and its errors; File and paths above
// it.
#include "tutti/checkpoint/file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "tutti/base/read_file.h"
#include "tutti/base/strings.h"
#include "tutti/base/to_size.h"

namespace tutti::checkpoint {

namespace {

void require(bool ok, std::string_view operation, const std::string& path) {
    if (!ok) throw IoError(operation, path, errno);
}

std::string explain(std::string_view operation, int code) {
    const auto reads = [&](std::string_view verb) { return operation == verb || operation.starts_with("open ("); };
    if (code == EACCES && (reads("open") || reads("list") || reads("read") || reads("stat")))
        return " (allow this user to read it, and to enter the directories above it)";
    if (code == ENOSPC || code == EDQUOT) return " (free some space, or choose a directory on a larger disk)";
    if (code == EFBIG) return " (allow larger files: ulimit -f unlimited, or another file system)";
    if (code == EROFS) return " (mount it for writing, or choose a directory of another file system)";
    if (code == EACCES || code == EPERM) return " (choose a directory that this user may write)";
    return "";
}

class MappedSource final : public ByteSource {
  public:
    explicit MappedSource(const std::string& path) : file_(path) {}
    const std::string& path() const override { return file_.path(); }
    int64_t size() const override { return static_cast<int64_t>(file_.bytes().size()); }
    void read(int64_t offset, std::span<std::byte> bytes) override {
        // Short steps: the file may be truncated at any time, and only the check before each step turns that into a
        // message.
        constexpr int64_t kStep = 1 << 20;
        const auto wanted = static_cast<int64_t>(bytes.size());
        check(offset >= 0 && offset <= size() && wanted <= size() - offset, path(), ": ", size(), " bytes, asked for ",
              wanted, " from ", offset);
        for (int64_t done = 0; done < wanted; done += kStep) {
            const auto step = to_size(std::min(kStep, wanted - done));
            file_.check_not_truncated();
            std::memcpy(bytes.data() + done, file_.bytes().data() + offset + done, step);
            const int64_t before = std::min(done, kStep);  // also the page between the steps
            file_.forget(offset + done - before, before + static_cast<int64_t>(step));
        }
    }

  private:
    MappedFile file_;
};

class PosixLock final : public FileLock {
  public:
    explicit PosixLock(int fd) : fd_(fd) {}
    ~PosixLock() override { ::close(fd_); }
    PosixLock(const PosixLock&) = delete;
    PosixLock& operator=(const PosixLock&) = delete;

  private:
    int fd_;
};

}  // namespace

IoError::IoError(std::string_view operation, const std::string& path, int code)
    : DataError(concat(operation, " ", path, ": ", std::generic_category().message(code), explain(operation, code))),
      code_(code) {}

FileHandle PosixFileSystem::create_exclusive(const std::string& path) {
    const int fd = retried([&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); });
    require(fd >= 0, "create", path);
    return {fd, path};
}

int64_t PosixFileSystem::pwrite(const FileHandle& file, std::span<const std::byte> bytes, int64_t offset) {
    const ssize_t written = retried([&] { return ::pwrite(file.id, bytes.data(), bytes.size(), offset); });
    require(written >= 0, "write", file.path);
    return written;
}

void PosixFileSystem::allocate(const FileHandle& file, int64_t size) {
    if (size == 0) return;
    // Not posix_fallocate: where the file system cannot reserve blocks, posix_fallocate writes every block once. On
    // such a file system a full disk shows at the write instead: as safe, only later.
    const int result = retried([&] { return ::fallocate(file.id, 0, 0, size); });
    if (result != 0 && (errno == EOPNOTSUPP || errno == ENOSYS)) return;
    require(result == 0, concat("reserve ", size, " bytes for"), file.path);
}

void PosixFileSystem::fsync(const FileHandle& file) { require(::fsync(file.id) == 0, "fsync", file.path); }

void PosixFileSystem::close(const FileHandle& file) {
    // On Linux the descriptor is gone even after EINTR; a second close could close another file.
    require(::close(file.id) == 0 || errno == EINTR, "close", file.path);
}

void PosixFileSystem::rename(const std::string& from, const std::string& to) {
    require(::rename(from.c_str(), to.c_str()) == 0, concat("rename ", from, " to"), to);
}

void PosixFileSystem::unlink(const std::string& path) { require(::unlink(path.c_str()) == 0, "remove", path); }

void PosixFileSystem::make_directory(const std::string& path) {
    require(::mkdir(path.c_str(), 0777) == 0, "make directory", path);
}

void PosixFileSystem::remove_directory(const std::string& path) {
    require(::rmdir(path.c_str()) == 0, "remove directory", path);
}

void PosixFileSystem::fsync_directory(const std::string& path) {
    const int fd = retried([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
    require(fd >= 0, "open directory", path);
    const int result = ::fsync(fd);
    const int code = errno;
    ::close(fd);
    // Some network file systems cannot sync a directory and say so with these two; their renames are synchronous.
    if (result != 0 && code != EINVAL && code != ENOTSUP) throw IoError("fsync directory", path, code);
}

FileHandle PosixFileSystem::open_read(const std::string& path) {
    // O_NONBLOCK: opening a FIFO must not hang.
    const int fd = retried([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); });
    require(fd >= 0, "open", path);
    struct stat info = {};
    const bool known = ::fstat(fd, &info) == 0;
    const int code = known ? (S_ISDIR(info.st_mode) ? EISDIR : EINVAL) : errno;
    if (!known || !S_ISREG(info.st_mode)) {
        ::close(fd);
        throw IoError("open (a regular file is needed)", path, code);
    }
    return {fd, path};
}

int64_t PosixFileSystem::pread(const FileHandle& file, std::span<std::byte> bytes, int64_t offset) {
    const ssize_t got = retried([&] { return ::pread(file.id, bytes.data(), bytes.size(), offset); });
    require(got >= 0, "read", file.path);
    return got;
}

int64_t PosixFileSystem::size(const FileHandle& file) {
    struct stat info = {};
    require(::fstat(file.id, &info) == 0, "stat", file.path);
    return info.st_size;
}

std::shared_ptr<ByteSource> PosixFileSystem::map(const std::string& path) {
    return std::make_shared<MappedSource>(path);
}

void PosixFileSystem::drop_cache(const FileHandle& file) {
    // Advice only: a page that stays cached makes the check weaker, not wrong.
    static_cast<void>(::posix_fadvise(file.id, 0, 0, POSIX_FADV_DONTNEED));
}

void PosixFileSystem::require_writable(const std::string& directory) {
    require(::faccessat(AT_FDCWD, directory.c_str(), W_OK | X_OK, AT_EACCESS) == 0, "write in", directory);
}

std::vector<std::string> PosixFileSystem::list(const std::string& directory) {
    const std::unique_ptr<DIR, int (*)(DIR*)> stream(::opendir(directory.c_str()), &::closedir);
    require(stream != nullptr, "list", directory);
    std::vector<std::string> names;
    for (;;) {
        errno = 0;  // the only way to tell the end from an error
        const dirent* entry = ::readdir(stream.get());
        if (entry == nullptr) break;
        const std::string name = entry->d_name;
        if (name != "." && name != "..") names.push_back(name);
    }
    require(errno == 0, "list", directory);
    std::sort(names.begin(), names.end());
    return names;
}

FileKind PosixFileSystem::kind(const std::string& path) {
    struct stat info = {};
    if (::lstat(path.c_str(), &info) != 0) {
        require(errno == ENOENT || errno == ENOTDIR, "stat", path);
        return FileKind::none;
    }
    if (S_ISDIR(info.st_mode)) return FileKind::directory;
    return S_ISREG(info.st_mode) ? FileKind::file : FileKind::other;
}

std::unique_ptr<FileLock> PosixFileSystem::lock(const std::string& path, const std::string& owner) {
    const int flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW;
    const int fd = retried([&] { return ::open(path.c_str(), flags, 0666); });
    require(fd >= 0, "open lock", path);
    auto held = std::make_unique<PosixLock>(fd);
    if (retried([&] { return ::flock(fd, LOCK_EX | LOCK_NB); }) != 0) {
        if (errno == ENOLCK || errno == ENOSYS || errno == EOPNOTSUPP) return nullptr;
        require(errno == EWOULDBLOCK, "lock", path);
        std::array<char, 256> text = {};
        const ssize_t got = ::pread(fd, text.data(), text.size(), 0);
        std::string holder(text.data(), to_size(std::max<ssize_t>(got, 0)));
        while (!holder.empty() && holder.back() == '\n') holder.pop_back();
        throw UsageError(concat(path, " is locked by ", holder.empty() ? "another process" : holder,
                                ": two runs cannot share a directory; stop that run or choose another with --out or "
                                "checkpoint.dir"));
    }
    struct stat info = {};
    require(::fstat(fd, &info) == 0, "stat", path);
    if (info.st_nlink == 0) return lock(path, owner);  // removed by its last holder since it was opened
    const std::string line = owner + "\n";
    const auto write = [&] { return ::pwrite(fd, line.data(), line.size(), 0); };
    require(retried([&] { return ::ftruncate(fd, 0); }) == 0 && retried(write) >= 0, "write lock", path);
    return held;
}

File File::create(FileSystem& file_system, const std::string& path) {
    return File(file_system, file_system.create_exclusive(path));
}

File File::open(FileSystem& file_system, const std::string& path) {
    return File(file_system, file_system.open_read(path));
}

File::File(File&& other) noexcept
    : file_system_(other.file_system_), handle_(std::move(other.handle_)), open_(std::exchange(other.open_, false)) {}

File::~File() {
    if (!open_) return;
    try {
        file_system_->close(handle_);
    } catch (...) {  // the file was only read, or an earlier write has already thrown
    }
}

void File::close() {
    open_ = false;  // also after an error: the descriptor is gone
    file_system_->close(handle_);
}

void File::write_all(std::span<const std::byte> bytes, int64_t offset) {
    while (!bytes.empty()) {
        const int64_t written = file_system_->pwrite(handle_, bytes, offset);
        if (written <= 0) throw IoError("write (nothing was taken)", handle_.path, EIO);
        bytes = bytes.subspan(to_size(written));
        offset += written;
    }
}

void File::read_all(std::span<std::byte> bytes, int64_t offset) const {
    while (!bytes.empty()) {
        const int64_t got = file_system_->pread(handle_, bytes, offset);
        check<DamagedError>(got > 0, handle_.path, " ends at byte ", offset, ", ", bytes.size(), " bytes too early");
        bytes = bytes.subspan(to_size(got));
        offset += got;
    }
}

std::string join(const std::string& directory, std::string_view name) {
    std::string path = directory;
    if (!path.empty() && path.back() != '/') path += '/';
    return path.append(name);
}

std::string parent_of(const std::string& path) {
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos) return ".";
    return slash == 0 ? "/" : path.substr(0, slash);
}

std::string_view last_name_of(std::string_view path) {
    const size_t slash = path.rfind('/');
    return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

std::string without_slashes(std::string path) {
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    return path;
}

bool is_plain_file_name(std::string_view name) {
    return !name.empty() && name.size() <= 255 && is_alphanumeric(name[0]) &&
           std::all_of(name.begin(), name.end(),
                       [](char c) { return is_alphanumeric(c) || c == '.' || c == '_' || c == '-'; });
}

std::string read_text(const File& file, int64_t limit) {
    const int64_t size = file.size();
    check<DamagedError>(size <= limit, file.path(), ": ", size, " bytes, at most ", limit, " are allowed");
    std::string text(to_size(size), '\0');
    file.read_all(std::as_writable_bytes(std::span(text)), 0);
    return text;
}

void make_directory(FileSystem& file_system, const std::string& path) {
    try {
        file_system.make_directory(path);
    } catch (const IoError& error) {
        check<UsageError>(is_of_disk(error.code()) || error.code() == EEXIST, error.what());
        throw;
    }
}

void make_directories(FileSystem& file_system, const std::string& path) {
    if (path.empty() || path == "." || path == "/") return;
    if (path.back() == '/') return make_directories(file_system, path.substr(0, path.size() - 1));
    const FileKind kind = file_system.kind(path);
    check<UsageError>(kind != FileKind::file, path, " is a file, where a directory is needed; choose another");
    if (kind == FileKind::other) {  // a link to a directory is as good
        try {
            file_system.list(path);
        } catch (const IoError& error) {
            const int code = error.code();
            check<UsageError>(code != ENOENT && code != ENOTDIR && code != ELOOP, path,
                              " is a link to nothing, or no directory, where a directory is needed (", error.what(),
                              "); choose another");
        }
    }
    if (kind != FileKind::none) return;
    const std::string parent = parent_of(path);
    make_directories(file_system, parent);
    try {
        make_directory(file_system, path);
    } catch (const IoError& error) {  // another process may have been faster
        if (error.code() != EEXIST || file_system.kind(path) != FileKind::directory) throw;
    }
    file_system.fsync_directory(parent);
}

void remove_tree(FileSystem& file_system, const std::string& path) {
    const FileKind kind = file_system.kind(path);
    if (kind == FileKind::none) return;
    if (kind != FileKind::directory) return file_system.unlink(path);
    for (const std::string& name : file_system.list(path)) remove_tree(file_system, join(path, name));
    file_system.remove_directory(path);
}

}  // namespace tutti::checkpoint
