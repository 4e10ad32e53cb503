// checkpoint/testing/fault_file_system.h: another FileSystem whose n-th state-changing call fails (SQLite's anomaly
// tests are the model). It also counts the bytes read.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tutti/checkpoint/file_system.h"

namespace tutti::checkpoint::testing {

struct Fault {
    int64_t call = -1;    // the number of the state-changing call that fails, from 0; -1: none
    int code = EIO;       // 0: a write takes only the half of its bytes
    bool sticky = false;  // all later calls fail, too
};

class FaultFileSystem final : public FileSystem {
  public:
    FaultFileSystem(FileSystem& below, Fault fault) : below_(below), fault_(fault) {}
    int64_t calls() const { return calls_; }
    bool fired() const { return fired_; }
    void set_fault(Fault fault) { fault_ = fault; }
    void disarm() { fault_.call = -1; }
    void fail_from_now_on() { fault_.call = calls_; }                     // with sticky
    std::map<std::string, int64_t>& bytes_read() { return bytes_read_; }  // by path
    // Reading files whose path has this part fails.
    void set_read_error(std::string path_part, int code) {
        unreadable_ = std::move(path_part);
        read_code_ = code;
    }

    void set_unwritable(int code) { unwritable_ = code; }

    FileHandle create_exclusive(const std::string& path) override {
        may_fail("create", path);
        FileHandle file = below_.create_exclusive(path);
        written_.insert(file.id);
        return file;
    }
    int64_t pwrite(const FileHandle& file, std::span<const std::byte> bytes, int64_t offset) override {
        const bool half = may_fail("write", file.path);
        return below_.pwrite(file, half ? bytes.first((bytes.size() + 1) / 2) : bytes, offset);
    }
    void allocate(const FileHandle& file, int64_t size) override {
        may_fail("allocate", file.path);
        below_.allocate(file, size);
    }
    void fsync(const FileHandle& file) override {
        may_fail("fsync", file.path);
        below_.fsync(file);
    }
    void close(const FileHandle& file) override {
        below_.close(file);  // a failed close has closed, too
        if (written_.erase(file.id) > 0) may_fail("close", file.path);
    }
    void rename(const std::string& from, const std::string& to) override {
        may_fail("rename", from);
        below_.rename(from, to);
    }
    void unlink(const std::string& path) override {
        may_fail("unlink", path);
        below_.unlink(path);
    }
    void make_directory(const std::string& path) override {
        may_fail("make directory", path);
        below_.make_directory(path);
    }
    void remove_directory(const std::string& path) override {
        may_fail("remove directory", path);
        below_.remove_directory(path);
    }
    void fsync_directory(const std::string& path) override {
        may_fail("fsync directory", path);
        below_.fsync_directory(path);
    }
    void require_writable(const std::string& directory) override {
        if (unwritable_ != 0) throw IoError("write in", directory, unwritable_);
        below_.require_writable(directory);
    }
    FileHandle open_read(const std::string& path) override { return below_.open_read(path); }
    int64_t pread(const FileHandle& file, std::span<std::byte> bytes, int64_t offset) override {
        if (!unreadable_.empty() && file.path.find(unreadable_) != std::string::npos)
            throw IoError("read", file.path, read_code_);
        const int64_t got = below_.pread(file, bytes, offset);
        bytes_read_[file.path] += got;
        return got;
    }
    int64_t size(const FileHandle& file) override { return below_.size(file); }
    std::shared_ptr<ByteSource> map(const std::string& path) override { return below_.map(path); }
    void drop_cache(const FileHandle& file) override { below_.drop_cache(file); }
    std::vector<std::string> list(const std::string& directory) override { return below_.list(directory); }
    FileKind kind(const std::string& path) override { return below_.kind(path); }
    std::unique_ptr<FileLock> lock(const std::string& path, const std::string& owner) override {
        return below_.lock(path, owner);
    }

  private:
    // Whether the call shall do half of its work.
    bool may_fail(const char* operation, const std::string& path) {
        const int64_t call = calls_++;
        const bool now = fault_.call >= 0 && (call == fault_.call || (fault_.sticky && call > fault_.call));
        fired_ = fired_ || now;
        if (now && fault_.code != 0) throw IoError(operation, path, fault_.code);
        return now;
    }

    FileSystem& below_;
    Fault fault_;
    int64_t calls_ = 0;
    bool fired_ = false;
    std::set<int> written_;  // open files that this object created; closing other files changes nothing
    std::map<std::string, int64_t> bytes_read_;
    std::string unreadable_;
    int read_code_ = EIO, unwritable_ = 0;
};

}  // namespace tutti::checkpoint::testing
