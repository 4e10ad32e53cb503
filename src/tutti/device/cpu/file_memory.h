// device/cpu/file_memory.h: memory that lives in a file on a disk, mapped: kernels read and write it as any other, and
// the system may take its pages away when memory is short. Where a rank without a GPU offloads to. Called by
// cpu_device.cpp.
#pragma once

#include <string>

#include "tutti/device/memory.h"

namespace tutti {

class FileMemory final : public RawMemory {
  public:
    // A new file without a name in `directory`, which is made when missing: it is gone with the process, however that
    // ends. UsageError when there can be none.
    explicit FileMemory(const std::string& directory);
    ~FileMemory() override;
    FileMemory(const FileMemory&) = delete;
    FileMemory& operator=(const FileMemory&) = delete;

    void* take(int64_t bytes) override;  // takes the space on the disk at once: a full disk is met here, not later
    void give_back(void* data, int64_t bytes) override;
    void will_need(void* data, int64_t bytes) override;
    std::string advice() const override;

  private:
    std::string directory_;
    int file_ = -1;
    int64_t size_ = 0;
    std::map<void*, int64_t> offsets_;  // of what is mapped
};

}  // namespace tutti
