// checkpoint/file_writer.h: writes one file of a checkpoint as a stream of 4 MiB chunks and digests it on the way; a
// directory that appears complete and durable, or not at all; who wrote a temporary file.
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
#include "tutti/checkpoint/file.h"

namespace tutti::checkpoint {

// 4 MiB: damage is located to 4 MiB, and the digests of 100 GB fit half a megabyte of manifest.
constexpr int64_t kChunkBytes = int64_t{4} << 20;

// A part of a file: bytes that lie in memory, or bytes that are made when their turn comes and may be forgotten when
// the next part is made, so that a file may be larger than memory.
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

// The content of a file: `head`, then the parts of `body` without gaps. The body is not copied: what it points to must
// live and stay unchanged until the file is written.
struct FileToWrite {
    std::string name;
    std::string head;
    std::vector<FilePart> body;

    int64_t size() const;
};

// What a manifest knows of a file.
struct FileRecord {
    std::string name;
    int64_t size = 0;
    std::vector<uint64_t> chunks;  // XXH3-64 of each kChunkBytes, the last one shorter
    Digest128 digest;              // XXH3-128 of the whole file
    bool operator==(const FileRecord&) const = default;
};

constexpr int64_t chunk_count(int64_t size) { return size / kChunkBytes + (size % kChunkBytes != 0 ? 1 : 0); }

// A file that is being written. The constructor creates it and reserves its full size, so that a full disk shows before
// the first byte is written; write() fills it, syncs it and closes it.
class NewFile {
  public:
    NewFile(FileSystem& file_system, const std::string& path, int64_t size);
    FileRecord write(const FileToWrite& content);

  private:
    File file_;
    int64_t size_;
};

// For exports beside a checkpoint: `directory`/`content.name` appears complete and durable, or not at all. Replaces an
// older file of that name.
FileRecord write_file_atomically(FileSystem& file_system, const std::string& directory, const FileToWrite& content);

// Removes from `directory` what calls of write_file_atomically left when their process was killed. What cannot be
// removed stays; the directory is as good with it.
void remove_temporary_files(FileSystem& file_system, const std::string& directory);

// Who wrote a temporary file: "<host>-<pid>", part of its name.
std::string this_owner();

enum class OwnerState { this_process, running, gone, elsewhere };  // gone: a zombie, too; elsewhere: on another host
OwnerState state_of(std::string_view owner);

// A directory that appears complete and durable, or not at all.
class NewDirectory {
  public:
    // Makes a sibling of `path` under a temporary name. UsageError when something is at `path`, but for an empty
    // directory: nothing is ever overwritten.
    NewDirectory(FileSystem& file_system, std::string path);
    ~NewDirectory();  // removes the sibling, unless commit() was called
    NewDirectory(const NewDirectory&) = delete;
    NewDirectory& operator=(const NewDirectory&) = delete;

    const std::string& temporary() const { return temporary_; }  // where to put the files
    void commit();

  private:
    FileSystem& file_system_;
    std::string path_, temporary_;
    bool committed_ = false;
};

}  // namespace tutti::checkpoint
