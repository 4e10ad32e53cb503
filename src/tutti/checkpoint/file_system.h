// checkpoint/file_system.h: the one interface between checkpoints and the disk, an open file, and operations on paths.
// Every call that changes a disk goes through FileSystem, so that tests can make the n-th call fail or cut the power
// after it; nothing else in this room calls the kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/error.h"

namespace tutti::checkpoint {

// Bytes that can be read at any offset: a file of a model (FileSystem::map), or a file of a checkpoint whose chunks are
// compared with their digests as they are read (checkpoint_reader.h).
class ByteSource {
  public:
    virtual ~ByteSource() = default;
    virtual const std::string& path() const = 0;
    virtual int64_t size() const = 0;
    virtual void read(int64_t offset, std::span<std::byte> bytes) = 0;  // all of them, or it throws
    virtual void drop_cache() const {}  // the next read() asks the disk, where the bytes are on one
};

// The operating system refused an operation: "write /run/step-….tmp/x: No space left on device".
class IoError : public DataError {
  public:
    IoError(std::string_view operation, const std::string& path, int code);
    IoError(const std::string& message, int code) : DataError(message), code_(code) {}  // of another rank
    int code() const { return code_; }                                                  // an errno value

  private:
    int code_;
};

// The disk holds other data than were written: a digest, a size or a name is wrong. Another copy may still be good, so
// a reader may fall back to it; any other DataError would occur with every copy.
class DamagedError : public DataError {
  public:
    using DataError::DataError;
};

struct FileHandle {
    int id = -1;
    std::string path;  // for messages
};

enum class FileKind { none, file, directory, other };

// The lock is held as long as this object lives; the operating system drops the lock when the process dies.
class FileLock {
  public:
    virtual ~FileLock() = default;
};

// All methods throw IoError. Interrupted calls are repeated inside, except fsync: after a failed fsync the kernel may
// have dropped the dirty pages and a second call reports success, so a caller must write a new file instead.
class FileSystem {
  public:
    virtual ~FileSystem() = default;

    virtual FileHandle create_exclusive(const std::string& path) = 0;  // EEXIST if anything is there
    virtual int64_t pwrite(const FileHandle& file, std::span<const std::byte> bytes,
                           int64_t offset) = 0;                       // may be short
    virtual void allocate(const FileHandle& file, int64_t size) = 0;  // reserves the blocks where the disk can
    virtual void fsync(const FileHandle& file) = 0;
    virtual void close(const FileHandle& file) = 0;
    virtual void rename(const std::string& from, const std::string& to) = 0;
    virtual void unlink(const std::string& path) = 0;
    virtual void make_directory(const std::string& path) = 0;  // EEXIST if anything is there
    virtual void remove_directory(const std::string& path) = 0;
    virtual void fsync_directory(const std::string& path) = 0;
    // Throws where this user may make nothing in the directory; changes nothing.
    virtual void require_writable(const std::string& directory) = 0;

    virtual FileHandle open_read(const std::string& path) = 0;  // a regular file; follows symbolic links
    virtual int64_t pread(const FileHandle& file, std::span<std::byte> bytes, int64_t offset) = 0;  // 0 at the end
    virtual int64_t size(const FileHandle& file) = 0;
    // Maps the file. Pages that were read once do not stay in memory. DataError when the file cannot be mapped or was
    // truncated.
    virtual std::shared_ptr<ByteSource> map(const std::string& path) = 0;
    virtual void drop_cache(const FileHandle& file) = 0;  // the next read goes to the disk, where the system allows
    virtual std::vector<std::string> list(const std::string& directory) = 0;  // names, sorted
    virtual FileKind kind(const std::string& path) = 0;                       // a link is `other`, whatever its target

    // An exclusive lock on `path`, which is created and holds `owner` as text. Throws UsageError that names the owner
    // if another holds it; null where the file system has no locks.
    virtual std::unique_ptr<FileLock> lock(const std::string& path, const std::string& owner) = 0;
};

class PosixFileSystem : public FileSystem {
  public:
    FileHandle create_exclusive(const std::string& path) override;
    int64_t pwrite(const FileHandle& file, std::span<const std::byte> bytes, int64_t offset) override;
    void allocate(const FileHandle& file, int64_t size) override;
    void fsync(const FileHandle& file) override;
    void close(const FileHandle& file) override;
    void rename(const std::string& from, const std::string& to) override;
    void unlink(const std::string& path) override;
    void make_directory(const std::string& path) override;
    void remove_directory(const std::string& path) override;
    void fsync_directory(const std::string& path) override;
    void require_writable(const std::string& directory) override;
    FileHandle open_read(const std::string& path) override;
    int64_t pread(const FileHandle& file, std::span<std::byte> bytes, int64_t offset) override;
    int64_t size(const FileHandle& file) override;
    std::shared_ptr<ByteSource> map(const std::string& path) override;
    void drop_cache(const FileHandle& file) override;
    std::vector<std::string> list(const std::string& directory) override;
    FileKind kind(const std::string& path) override;
    std::unique_ptr<FileLock> lock(const std::string& path, const std::string& owner) override;
};

// An open file. The destructor closes the file; reads and writes are complete or throw.
class File {
  public:
    static File create(FileSystem& file_system, const std::string& path);
    static File open(FileSystem& file_system, const std::string& path);
    ~File();  // closes and drops an error, so a writer calls close() itself
    File(File&& other) noexcept;
    File& operator=(File&&) = delete;
    File(const File&) = delete;

    const std::string& path() const { return handle_.path; }
    int64_t size() const { return file_system_->size(handle_); }
    void allocate(int64_t size) { file_system_->allocate(handle_, size); }
    void write_all(std::span<const std::byte> bytes, int64_t offset);
    void sync() { file_system_->fsync(handle_); }
    void close();
    // Fills `bytes`. DamagedError if the file ends before that.
    void read_all(std::span<std::byte> bytes, int64_t offset) const;
    void drop_cache() const { file_system_->drop_cache(handle_); }

  private:
    File(FileSystem& file_system, FileHandle handle) : file_system_(&file_system), handle_(std::move(handle)) {}

    FileSystem* file_system_;
    FileHandle handle_;
    bool open_ = true;
};

std::string join(const std::string& directory, std::string_view name);
std::string parent_of(const std::string& path);        // "a/b" -> "a", "b" -> "."
std::string_view last_name_of(std::string_view path);  // "a/b" -> "b"
std::string without_slashes(std::string path);         // "a/b//" -> "a/b", "/" -> "/"
bool is_plain_file_name(std::string_view name);  // [A-Za-z0-9][A-Za-z0-9._-]{0,254}: cannot lead out of its directory

// The whole text file. DamagedError if the file is longer than `limit`.
std::string read_text(const File& file, int64_t limit);
// Creates `path`. UsageError where nothing may be made, IoError of a full disk.
void make_directory(FileSystem& file_system, const std::string& path);
// The same for `path` and its parents where they are missing, durably. UsageError where one of them is a file.
void make_directories(FileSystem& file_system, const std::string& path);
// Removes a file, a link, or a directory with everything below it. Does not follow links.
void remove_tree(FileSystem& file_system, const std::string& path);

}  // namespace tutti::checkpoint
