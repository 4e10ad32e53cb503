// data/new_file.h: a file that exists under its name only once it is complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tutti::data {

class NewFile {
  public:
    // Written beside `path` under another name. UsageError with `advice` when that is not possible.
    explicit NewFile(std::string path, const std::string& advice = "is the folder there, and may you write in it?");
    ~NewFile();  // without commit() nothing is left
    NewFile(const NewFile&) = delete;
    NewFile& operator=(const NewFile&) = delete;

    const std::string& path() const { return path_; }
    // DataError with the system's reason, such as a full disk.
    void write(const void* bytes, size_t size);  // at the end
    void write_at(int64_t offset, const void* bytes, size_t size);
    void commit();  // synced and renamed

  private:
    std::string path_, temporary_;
    int descriptor_ = -1;
    int64_t size_ = 0;
    bool committed_ = false;
};

}  // namespace tutti::data
