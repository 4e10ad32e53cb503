// checkpoint/state_source.h: where a checkpoint is read from: a directory of a disk, or pieces that several hosts hold
// in memory. The reader (checkpoint_reader.h) compares what any source gives with the manifest's digests, and
// rectangles of tensors (training_state.h) come out of either, under any layout.
#pragma once

#include <memory>
#include <string>

#include "tutti/checkpoint/file_system.h"
#include "tutti/checkpoint/file_writer.h"

namespace tutti::checkpoint {

class StateSource {
  public:
    virtual ~StateSource() = default;
    // "runs/a/checkpoints/step-0000000100", "the copy of step 100 in memory": for messages.
    virtual const std::string& path() const = 0;
    // The text of MANIFEST.json. DataError without one.
    virtual std::string manifest() = 0;
    // A file of the manifest, as it is: no digest has been compared. DamagedError when the file is missing
    // or no regular file.
    virtual std::shared_ptr<ByteSource> file(const FileRecord& record) = 0;
};

// The directory of a checkpoint. `file_system` must outlive the source and its files.
class DirectorySource final : public StateSource {
  public:
    DirectorySource(FileSystem& file_system, std::string path) : file_system_(file_system), path_(std::move(path)) {}
    const std::string& path() const override { return path_; }
    std::string manifest() override;
    std::shared_ptr<ByteSource> file(const FileRecord& record) override;

  private:
    FileSystem& file_system_;
    std::string path_;
};

}  // namespace tutti::checkpoint
