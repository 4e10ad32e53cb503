// checkpoint/new_directory.h: a directory that appears complete and durable, or not at all. Below: file.h. Called by
// infer/convert.cpp.
#pragma once

#include <string>

#include "tutti/checkpoint/file.h"

namespace tutti::checkpoint {

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
