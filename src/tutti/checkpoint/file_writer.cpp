#include "tutti/checkpoint/file_writer.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>

#include "tutti/base/digits.h"
#include "tutti/base/to_size.h"
#include "tutti/device/device.h"

namespace tutti::checkpoint {

namespace {

// Walks over head and body in spans of kChunkBytes. A chunk inside one piece is returned in place; only a chunk that
// spans several pieces is copied into the buffer.
class ChunkStream {
  public:
    explicit ChunkStream(const FileToWrite& content)
        : name_(content.name), body_(content.body), piece_(std::as_bytes(std::span(content.head))) {}

    std::span<const std::byte> next(int64_t bytes) {
        skip_empty();
        const auto wanted = to_size(bytes);
        if (piece_.size() - at_ >= wanted) {
            const auto chunk = piece_.subspan(at_, wanted);
            at_ += wanted;
            return chunk;
        }
        buffer_.resize(wanted);
        for (size_t filled = 0; filled < wanted; skip_empty()) {
            const size_t part = std::min(wanted - filled, piece_.size() - at_);
            std::memcpy(buffer_.data() + filled, piece_.data() + at_, part);
            filled += part;
            at_ += part;
        }
        return buffer_;
    }

  private:
    void skip_empty() {
        for (; next_ < body_.size() && at_ == piece_.size(); ++next_, at_ = 0) {
            const FilePart& piece = body_[next_];
            piece_ = piece.make ? piece.make() : piece.bytes;
            check(static_cast<int64_t>(piece_.size()) == piece.size, name_, ": a piece of ", piece.size,
                  " bytes was announced, got ", piece_.size());
        }
    }
    const std::string& name_;
    const std::vector<FilePart>& body_;
    std::span<const std::byte> piece_;  // the one that is being read
    std::vector<std::byte> buffer_;
    size_t next_ = 0, at_ = 0;
};

constexpr std::string_view kTemporaryFile = ".tmp-";

// The host's name with only letters, digits and '_', so that '-' separates the parts.
std::string plain_host_name() {
    std::string host = host_name();
    if (host.size() > 64) host.resize(64);
    std::ranges::replace_if(host, std::not_fn(is_alphanumeric), '_');
    return host;
}

// A process that has ended but whose parent has not waited for it. In a container without an init it stays for ever.
bool is_zombie(pid_t pid) {
    std::ifstream stat(concat("/proc/", pid, "/stat"));  // "1234 (name) Z ...": the name may hold anything
    const std::string text(std::istreambuf_iterator<char>(stat), {});
    const size_t name_ends = text.rfind(')');
    return name_ends != std::string::npos && text.substr(name_ends, 3) == ") Z";
}

bool is_free(FileSystem& file_system, const std::string& path) {
    const FileKind kind = file_system.kind(path);
    return kind == FileKind::none || (kind == FileKind::directory && file_system.list(path).empty());
}

}  // namespace

int64_t FileToWrite::size() const {
    auto bytes = static_cast<int64_t>(head.size());
    for (const auto& piece : body) bytes += piece.size;
    return bytes;
}

NewFile::NewFile(FileSystem& file_system, const std::string& path, int64_t size)
    : file_(File::create(file_system, path)), size_(size) {
    file_.allocate(size);
}

FileRecord NewFile::write(const FileToWrite& content) {
    check(content.size() == size_, file_.path(), ": ", size_, " bytes were reserved, got ", content.size());
    FileRecord record{content.name, size_, {}, {}};
    record.chunks.reserve(to_size(chunk_count(size_)));
    ChunkStream stream(content);
    Hasher128 whole;
    for (int64_t offset = 0; offset < size_; offset += kChunkBytes) {
        const auto chunk = stream.next(std::min(kChunkBytes, size_ - offset));
        record.chunks.push_back(xxh3_64(chunk));
        whole.update(chunk);
        file_.write_all(chunk, offset);
    }
    record.digest = whole.digest();
    file_.sync();
    file_.close();
    return record;
}

FileRecord write_file_atomically(FileSystem& file_system, const std::string& directory, const FileToWrite& content) {
    check<UsageError>(is_plain_file_name(content.name), "'", content.name, "' is not a plain file name");
    const std::string path = join(directory, content.name);
    const std::string temporary = concat(path, kTemporaryFile, this_owner());
    remove_tree(file_system, temporary);  // of an earlier process with our id that was killed
    try {
        FileRecord record = NewFile(file_system, temporary, content.size()).write(content);
        file_system.rename(temporary, path);
        file_system.fsync_directory(directory);
        return record;
    } catch (const Error&) {
        try {
            remove_tree(file_system, temporary);
        } catch (const IoError&) {  // the first error is the one that matters
        }
        throw;
    }
}

void remove_temporary_files(FileSystem& file_system, const std::string& directory, bool is_locked) {
    for (const std::string& name : file_system.list(directory)) {
        const size_t suffix = name.rfind(kTemporaryFile);
        if (suffix == std::string::npos) continue;
        const OwnerState owner = state_of(name.substr(suffix + kTemporaryFile.size()));
        if (owner != OwnerState::gone && !(is_locked && owner == OwnerState::elsewhere)) continue;
        try {
            file_system.unlink(join(directory, name));
        } catch (const IoError&) {
        }
    }
}

std::string this_owner() { return plain_host_name() + "-" + std::to_string(::getpid()); }

OwnerState state_of(std::string_view owner) {
    if (owner == this_owner()) return OwnerState::this_process;
    const size_t dash = owner.rfind('-');
    if (dash == std::string_view::npos || owner.substr(0, dash) != plain_host_name()) return OwnerState::elsewhere;
    const pid_t pid = parse_number<pid_t>(owner.substr(dash + 1)).value_or(0);
    if (pid <= 0) return OwnerState::elsewhere;
    if (::kill(pid, 0) != 0 && errno != EPERM) return OwnerState::gone;
    return is_zombie(pid) ? OwnerState::gone : OwnerState::running;
}

NewDirectory::NewDirectory(FileSystem& file_system, std::string path)
    : file_system_(file_system),
      path_(without_slashes(std::move(path))),
      temporary_(concat(path_, kTemporaryFile, this_owner())) {
    check<UsageError>(!path_.empty() && is_free(file_system_, path_), "'", path_,
                      "' must not exist, or be an empty directory: nothing is overwritten; choose another");
    make_directories(file_system_, parent_of(path_));
    const std::string siblings = concat(last_name_of(path_), kTemporaryFile);
    for (const std::string& name : file_system_.list(parent_of(path_)))
        if (name.starts_with(siblings) && (state_of(name.substr(siblings.size())) == OwnerState::gone ||
                                           name.substr(siblings.size()) == this_owner()))
            remove_tree(file_system_, join(parent_of(path_), name));  // of a process that was killed
    make_directory(file_system_, temporary_);
}

NewDirectory::~NewDirectory() {
    if (committed_) return;
    try {
        remove_tree(file_system_, temporary_);
    } catch (const Error&) {  // the error that ended the writing is the one that matters
    }
}

void NewDirectory::commit() {
    file_system_.fsync_directory(temporary_);
    // rename() itself refuses a directory that was filled meanwhile.
    file_system_.rename(temporary_, path_);
    committed_ = true;
    file_system_.fsync_directory(parent_of(path_));
}

}  // namespace tutti::checkpoint
