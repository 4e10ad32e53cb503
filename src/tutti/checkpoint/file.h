// checkpoint/file.h: an open file that closes itself, whole reads and writes, and small path helpers.
#pragma once

#include <string>
#include <vector>

#include "tutti/checkpoint/file_system.h"

namespace tutti::checkpoint {

class File {
  public:
    static File create(FileSystem& file_system, const std::string& path);
    static File open(FileSystem& file_system, const std::string& path);
    ~File();  // closes; an error is dropped here, so a writer calls close() itself
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
bool is_plain_file_name(std::string_view name);        // [A-Za-z0-9][A-Za-z0-9._-]{0,254}: cannot leave its directory

// A text file as a whole. DamagedError if it is longer than `limit`.
std::string read_text(const File& file, int64_t limit);
// Makes the missing ones of `path` and of its parents durable.
void make_directories(FileSystem& file_system, const std::string& path);
// Removes a file, a link or a directory with all below it. Does not follow links.
void remove_tree(FileSystem& file_system, const std::string& path);

}  // namespace tutti::checkpoint
