// checkpoint/file_writer.h: writes a file as a stream of 4 MiB chunks with a digest of each; files and directories that
// appear complete and durable, or not at all; the owners of temporary files.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/checkpoint/digest.h"
#include "tutti/checkpoint/file_system.h"

namespace tutti::checkpoint {

// 4 MiB: damage is located to 4 MiB, and the digests of 100 GB fit half a megabyte of manifest.
constexpr int64_t kChunkBytes = int64_t{4} << 20;

// A part of a file: bytes in memory, or bytes that `make` produces when they are written. Produced bytes need not
// outlive the next call of a `make`, so that a file may be larger than memory.
struct FilePart {
    FilePart() = default;
    template <class Bytes>
    requires std::convertible_to<const Bytes&, std::span<const std::byte>> FilePart(const Bytes& in_memory)
        : bytes(in_memory), size(static_cast<int64_t>(std::span<const std::byte>(in_memory).size())) {}
    FilePart(int64_t size_, std::function<std::span<const std::byte>()> make_) : size(size_), make(std::move(make_)) {}

    std::span<const std::byte> bytes;
    int64_t size = 0;
    std::function<std::span<const std::byte>()> make;  // exactly `size` bytes
};

// The content of a file: `head`, then the parts of `body` without gaps. The body is not copied: the memory that it
// points to must live and stay unchanged until the file is written.
struct FileToWrite {
    std::string name;
    std::string head;
    std::vector<FilePart> body;

    int64_t size() const;
};

// A file's entry in a manifest.
struct FileRecord {
    std::string name;
    int64_t size = 0;
    std::vector<uint64_t> chunks;  // XXH3-64 of each kChunkBytes, the last one shorter
    Digest128 digest;              // XXH3-128 of the whole file
    bool operator==(const FileRecord&) const = default;
};

constexpr int64_t chunk_count(int64_t size) { return size / kChunkBytes + (size % kChunkBytes != 0 ? 1 : 0); }

// A file under construction. The constructor creates the file and reserves its full size, so that a full disk shows
// before the first byte is written; write() fills, syncs and closes the file.
class NewFile {
  public:
    NewFile(FileSystem& file_system, const std::string& path, int64_t size);
    FileRecord write(const FileToWrite& content);

  private:
    File file_;
    int64_t size_;
};

// Writes `directory`/`content.name`, which appears complete and durable, or not at all. Replaces an older file of that
// name.
FileRecord write_file_atomically(FileSystem& file_system, const std::string& directory, const FileToWrite& content);

// Removes from `directory` the temporary files of killed calls of write_file_atomically: those of this host, and with
// `is_locked`, when the caller holds a lock without which nothing is written there, those of other hosts too, since a
// container has another name with each start. Files that cannot be removed stay; they do no harm.
void remove_temporary_files(FileSystem& file_system, const std::string& directory, bool is_locked);

// The process that writes a temporary file, "<host>-<pid>": part of the file's name.
std::string this_owner();

enum class OwnerState { this_process, running, gone, elsewhere };  // gone: also a zombie; elsewhere: on another host
OwnerState state_of(std::string_view owner);

// A directory that appears complete and durable, or not at all.
class NewDirectory {
  public:
    // Makes a sibling of `path` under a temporary name. UsageError when `path` exists and is not an empty directory:
    // nothing is ever overwritten.
    NewDirectory(FileSystem& file_system, std::string path);
    ~NewDirectory();  // removes the sibling, unless commit() was called
    NewDirectory(const NewDirectory&) = delete;
    NewDirectory& operator=(const NewDirectory&) = delete;

    const std::string& temporary() const { return temporary_; }  // the files go here
    void commit();

  private:
    FileSystem& file_system_;
    std::string path_, temporary_;
    bool committed_ = false;
};

}  // namespace tutti::checkpoint
