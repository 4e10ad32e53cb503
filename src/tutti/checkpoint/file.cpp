#include "tutti/checkpoint/file.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace tutti::checkpoint {

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
    } catch (...) {  // either a file that was only read, or one whose writing failed with an error of its own
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
        bytes = bytes.subspan(static_cast<size_t>(written));
        offset += written;
    }
}

void File::read_all(std::span<std::byte> bytes, int64_t offset) const {
    while (!bytes.empty()) {
        const int64_t got = file_system_->pread(handle_, bytes, offset);
        check<DamagedError>(got > 0, handle_.path, " ends at byte ", offset, ", ", bytes.size(), " bytes too early");
        bytes = bytes.subspan(static_cast<size_t>(got));
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

bool is_plain_file_name(std::string_view name) {
    const auto alphanumeric = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    };
    return !name.empty() && name.size() <= 255 && alphanumeric(name[0]) &&
           std::all_of(name.begin(), name.end(),
                       [&](char c) { return alphanumeric(c) || c == '.' || c == '_' || c == '-'; });
}

std::string read_text(const File& file, int64_t limit) {
    const int64_t size = file.size();
    check<DamagedError>(size <= limit, file.path(), ": ", size, " bytes, at most ", limit, " are allowed");
    std::string text(static_cast<size_t>(size), '\0');
    file.read_all(std::as_writable_bytes(std::span(text)), 0);
    return text;
}

void make_directories(FileSystem& file_system, const std::string& path) {
    if (path.empty() || path == "." || path == "/" || file_system.kind(path) == FileKind::directory) return;
    if (path.back() == '/') return make_directories(file_system, path.substr(0, path.size() - 1));
    if (file_system.kind(path) == FileKind::other) return;  // a link to a directory is as good; a wrong one shows later
    const std::string parent = parent_of(path);
    make_directories(file_system, parent);
    try {
        file_system.make_directory(path);
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
