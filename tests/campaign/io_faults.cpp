// tests/campaign/io_faults.cpp: a library for LD_PRELOAD. It watches the I/O calls that a program makes on the files of
// one folder, and lets one of them fail, be cut short, or be the moment at which a signal comes. The program knows
// nothing of it. scripts/campaign.py drives it by the environment:
//
//   IO_FAULTS_ROOT      the folder, absolute; calls on other files are left alone
//   IO_FAULTS_LOG       a file outside; each call appends a line "OPERATION PATH", PATH below the root
//   IO_FAULTS_CALL      "OPERATION PATTERN N": the N-th call (from 1) of this name on a path that the pattern matches
//   IO_FAULTS_DO        what happens there: an error (EIO), `short` (half of the bytes), or a signal (SIGKILL)
//   IO_FAULTS_STICKY    1: every later call that changes something fails, too
//   IO_FAULTS_DELAY_US  the signal comes this much later
//   IO_FAULTS_RANK      only in the process that mpirun gave this rank
//
// The moment is written to the log as a line that begins with "!". A call is named by file, not by number, because
// threads make calls in no fixed order.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>

namespace {

std::string variable(const char* name) {
    const char* value = std::getenv(name);
    return value ? value : "";
}

constexpr std::array<std::pair<const char*, int>, 8> kErrors = {{{"EIO", EIO},
                                                                 {"ENOSPC", ENOSPC},
                                                                 {"EDQUOT", EDQUOT},
                                                                 {"EINTR", EINTR},
                                                                 {"EACCES", EACCES},
                                                                 {"ENOMEM", ENOMEM},
                                                                 {"ENOLCK", ENOLCK},
                                                                 {"EOPNOTSUPP", EOPNOTSUPP}}};
constexpr std::array<std::pair<const char*, int>, 5> kSignals = {
    {{"SIGKILL", SIGKILL}, {"SIGTERM", SIGTERM}, {"SIGINT", SIGINT}, {"SIGHUP", SIGHUP}, {"SIGUSR1", SIGUSR1}}};

template <class Table>
int number_of(const Table& table, const std::string& name) {
    for (const auto& [known, number] : table)
        if (name == known) return number;
    return 0;
}

enum class Act { pass, fail, cut };

class Faults {
  public:
    Faults() : root_(variable("IO_FAULTS_ROOT")) {
        std::string call_rank = variable("IO_FAULTS_RANK"), own = variable("OMPI_COMM_WORLD_RANK");
        if (own.empty()) own = variable("PMI_RANK");
        if (own.empty()) own = variable("RANK");
        if (root_.empty() || (!call_rank.empty() && call_rank != own)) return;
        const std::string log = variable("IO_FAULTS_LOG"), what = variable("IO_FAULTS_DO");
        constexpr int kMode = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;
        if (!log.empty()) log_ = static_cast<int>(::syscall(SYS_openat, AT_FDCWD, log.c_str(), kMode, 0666));
        std::istringstream(variable("IO_FAULTS_CALL")) >> operation_ >> pattern_ >> count_;
        error_ = number_of(kErrors, what);
        signal_ = number_of(kSignals, what);
        cuts_ = what == "short";
        sticky_ = variable("IO_FAULTS_STICKY") == "1";
        delay_us_ = std::atol(variable("IO_FAULTS_DELAY_US").c_str());
        watches_ = true;
    }

    // The path below the root, or "".
    std::string below_root(const char* path) const {
        if (!watches_ || path == nullptr) return "";
        const std::string text = path;
        return text.size() > root_.size() && text.starts_with(root_) && text[root_.size()] == '/'
                   ? text.substr(root_.size() + 1)
                   : "";
    }
    void opened(int fd, const std::string& path) {
        const std::lock_guard lock(mutex_);
        if (fd >= 0 && fd < kDescriptors) paths_[static_cast<size_t>(fd)] = path;
    }
    std::string path_of(int fd) {
        if (!watches_ || fd < 0 || fd >= kDescriptors) return "";
        const std::lock_guard lock(mutex_);
        return paths_[static_cast<size_t>(fd)];
    }
    std::string path_at(int directory, const char* name) {
        if (directory == AT_FDCWD || name[0] == '/') return below_root(name);
        const std::string above = path_of(directory);
        return above.empty() ? "" : above + "/" + name;
    }

    int error() const { return error_; }
    Act next(const char* operation, const std::string& path, bool changes) {
        if (path.empty()) return Act::pass;
        const std::lock_guard lock(mutex_);
        write_log(operation, path);
        if (came_) return sticky_ && changes ? Act::fail : Act::pass;
        if (operation_ != operation || fnmatch(pattern_.c_str(), path.c_str(), 0) != 0 || --count_ != 0)
            return Act::pass;
        came_ = true;
        const std::string call = std::string(operation) + " " + path;
        if (signal_ == 0) {
            write_log("!", call);
            return cuts_ ? Act::cut : Act::fail;
        }
        const auto send = [this, call] {
            write_log("!", call);
            ::kill(::getpid(), signal_);
        };
        if (delay_us_ == 0) {
            send();
        } else {
            std::thread([send, us = delay_us_] {
                ::usleep(static_cast<useconds_t>(us));
                send();
            }).detach();
        }
        return Act::pass;
    }

  private:
    void write_log(const char* operation, const std::string& path) const {
        if (log_ < 0) return;
        const std::string line = std::string(operation) + " " + path + "\n";
        static_cast<void>(::syscall(SYS_write, log_, line.data(), line.size()));
    }

    static constexpr int kDescriptors = 4096;
    std::string root_, operation_, pattern_;
    int log_ = -1, error_ = 0, signal_ = 0;
    long count_ = 0, delay_us_ = 0;
    bool watches_ = false, cuts_ = false, sticky_ = false, came_ = false;
    std::mutex mutex_;
    std::array<std::string, kDescriptors> paths_;
};

// Made at the first call and never destroyed: calls come until the process is gone.
Faults& faults() {
    static auto* const made = new Faults;
    return *made;
}

template <class Function>
Function* real(const char* name) {
    return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

// `call`, or the error that the campaign asked for.
template <class Result, class Call>
Result guarded(const char* operation, const std::string& path, bool changes, Result failure, Call call) {
    if (faults().next(operation, path, changes) == Act::pass) return call();
    errno = faults().error();
    return failure;
}

// The same for calls that may move fewer bytes than asked.
template <class Call>
ssize_t moved(const char* operation, int fd, size_t bytes, bool changes, Call call) {
    switch (faults().next(operation, faults().path_of(fd), changes)) {
        case Act::pass: return call(bytes);
        case Act::cut: return call(bytes > 1 ? bytes / 2 : bytes);
        case Act::fail: break;
    }
    errno = faults().error();
    return -1;
}

bool creates(int flags) { return (flags & (O_CREAT | O_TRUNC)) != 0; }

template <class Open>
int opens(const char* operation, const std::string& path, bool changes, Open open) {
    const int fd = guarded(operation, path, changes, -1, open);
    faults().opened(fd, path);
    return fd;
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
    va_end(more);
    static const auto next = real<decltype(::open)>("open");
    return opens(creates(flags) ? "create" : "open", faults().below_root(path), creates(flags),
                 [&] { return next(path, flags, mode); });
}
int openat(int directory, const char* path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
    va_end(more);
    static const auto next = real<decltype(::openat)>("openat");
    return opens(creates(flags) ? "create" : "open", faults().path_at(directory, path), creates(flags),
                 [&] { return next(directory, path, flags, mode); });
}
FILE* fopen(const char* path, const char* mode) {
    static const auto next = real<decltype(::fopen)>("fopen");
    const std::string below = faults().below_root(path);
    const bool changes = mode[0] != 'r';
    FILE* file = guarded<FILE*>(changes ? "create" : "open", below, changes, nullptr, [&] { return next(path, mode); });
    if (file != nullptr) faults().opened(::fileno(file), below);
    return file;
}
FILE* fopen64(const char* path, const char* mode) { return fopen(path, mode); }

// A close that fails has closed.
int close(int fd) {
    static const auto next = real<decltype(::close)>("close");
    const std::string path = faults().path_of(fd);
    if (!path.empty()) faults().opened(fd, "");
    const int closed = next(fd);
    return guarded("close", path, true, -1, [&] { return closed; });
}
int fclose(FILE* file) {
    static const auto next = real<decltype(::fclose)>("fclose");
    const std::string path = faults().path_of(::fileno(file));
    if (!path.empty()) faults().opened(::fileno(file), "");
    const int closed = next(file);
    return guarded("close", path, true, EOF, [&] { return closed; });
}

ssize_t write(int fd, const void* bytes, size_t size) {
    static const auto next = real<decltype(::write)>("write");
    return moved("write", fd, size, true, [&](size_t part) { return next(fd, bytes, part); });
}
ssize_t writev(int fd, const iovec* parts, int count) {
    static const auto next = real<decltype(::writev)>("writev");
    // The half of what comes in parts: the first part.
    return moved("write", fd, 2, true, [&](size_t part) { return next(fd, parts, part == 1 ? 1 : count); });
}
ssize_t pwrite(int fd, const void* bytes, size_t size, off_t offset) {
    static const auto next = real<decltype(::pwrite)>("pwrite");
    return moved("write", fd, size, true, [&](size_t part) { return next(fd, bytes, part, offset); });
}
ssize_t read(int fd, void* bytes, size_t size) {
    static const auto next = real<decltype(::read)>("read");
    return moved("read", fd, size, false, [&](size_t part) { return next(fd, bytes, part); });
}
ssize_t pread(int fd, void* bytes, size_t size, off_t offset) {
    static const auto next = real<decltype(::pread)>("pread");
    return moved("read", fd, size, false, [&](size_t part) { return next(fd, bytes, part, offset); });
}

int fallocate(int fd, int mode, off_t offset, off_t size) {
    static const auto next = real<decltype(::fallocate)>("fallocate");
    return guarded("fallocate", faults().path_of(fd), true, -1, [&] { return next(fd, mode, offset, size); });
}
int ftruncate(int fd, off_t size) {
    static const auto next = real<decltype(::ftruncate)>("ftruncate");
    return guarded("ftruncate", faults().path_of(fd), true, -1, [&] { return next(fd, size); });
}
int fsync(int fd) {
    static const auto next = real<decltype(::fsync)>("fsync");
    return guarded("fsync", faults().path_of(fd), true, -1, [&] { return next(fd); });
}
int rename(const char* from, const char* to) {
    static const auto next = real<decltype(::rename)>("rename");
    return guarded("rename", faults().below_root(from), true, -1, [&] { return next(from, to); });
}
int unlink(const char* path) {
    static const auto next = real<decltype(::unlink)>("unlink");
    return guarded("unlink", faults().below_root(path), true, -1, [&] { return next(path); });
}
int unlinkat(int directory, const char* path, int flags) {
    static const auto next = real<decltype(::unlinkat)>("unlinkat");
    return guarded("unlink", faults().path_at(directory, path), true, -1, [&] { return next(directory, path, flags); });
}
int remove(const char* path) {
    static const auto next = real<decltype(::remove)>("remove");
    return guarded("unlink", faults().below_root(path), true, -1, [&] { return next(path); });
}
int rmdir(const char* path) {
    static const auto next = real<decltype(::rmdir)>("rmdir");
    return guarded("rmdir", faults().below_root(path), true, -1, [&] { return next(path); });
}
int mkdir(const char* path, mode_t mode) {
    static const auto next = real<decltype(::mkdir)>("mkdir");
    return guarded("mkdir", faults().below_root(path), true, -1, [&] { return next(path, mode); });
}

DIR* opendir(const char* path) {
    static const auto next = real<decltype(::opendir)>("opendir");
    const std::string below = faults().below_root(path);
    DIR* directory = guarded<DIR*>("opendir", below, false, nullptr, [&] { return next(path); });
    if (directory != nullptr) faults().opened(::dirfd(directory), below);
    return directory;
}
int closedir(DIR* directory) {
    static const auto next = real<decltype(::closedir)>("closedir");
    faults().opened(::dirfd(directory), "");
    return next(directory);
}
dirent* readdir(DIR* directory) {
    static const auto next = real<decltype(::readdir)>("readdir");
    return guarded<dirent*>("readdir", faults().path_of(::dirfd(directory)), false, nullptr,
                            [&] { return next(directory); });
}
int stat(const char* path, struct stat* info) {
    static const auto next = real<int(const char*, struct stat*)>("stat");
    return guarded("stat", faults().below_root(path), false, -1, [&] { return next(path, info); });
}
int lstat(const char* path, struct stat* info) {
    static const auto next = real<int(const char*, struct stat*)>("lstat");
    return guarded("stat", faults().below_root(path), false, -1, [&] { return next(path, info); });
}
int fstat(int fd, struct stat* info) {
    static const auto next = real<int(int, struct stat*)>("fstat");
    return guarded("stat", faults().path_of(fd), false, -1, [&] { return next(fd, info); });
}
void* mmap(void* address, size_t size, int protection, int flags, int fd, off_t offset) {
    static const auto next = real<decltype(::mmap)>("mmap");
    return guarded("mmap", faults().path_of(fd), false, MAP_FAILED,
                   [&] { return next(address, size, protection, flags, fd, offset); });
}
int flock(int fd, int operation) {
    static const auto next = real<decltype(::flock)>("flock");
    return guarded("flock", faults().path_of(fd), false, -1, [&] { return next(fd, operation); });
}

}  // extern "C"
