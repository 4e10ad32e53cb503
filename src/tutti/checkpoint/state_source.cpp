#include "tutti/checkpoint/state_source.h"

#include <algorithm>
#include <cerrno>

#include "tutti/checkpoint/manifest.h"

namespace tutti::checkpoint {

namespace {

File open_listed(FileSystem& file_system, const std::string& path, std::string_view listed_by) {
    try {
        return File::open(file_system, path);
    } catch (const IoError& error) {
        const bool is_missing = error.code() == ENOENT;
        const auto kinds_of_others = {EISDIR, EINVAL, ENXIO, ELOOP};  // folder, pipe, socket, link to itself
        const bool is_other = std::ranges::find(kinds_of_others, error.code()) != kinds_of_others.end();
        if (!is_missing && !is_other) throw;
        throw DamagedError(concat(path, is_missing ? " is missing; " : " is not a regular file; ", listed_by));
    }
}

class FileSource final : public ByteSource {
  public:
    explicit FileSource(File file) : file_(std::move(file)), size_(file_.size()) {}
    const std::string& path() const override { return file_.path(); }
    int64_t size() const override { return size_; }
    void read(int64_t offset, std::span<std::byte> bytes) override { file_.read_all(bytes, offset); }
    void drop_cache() const override { file_.drop_cache(); }

  private:
    File file_;
    int64_t size_;
};

}  // namespace

std::string DirectorySource::manifest() {
    check<DataError>(file_system_.kind(path_) != FileKind::none, "there is no checkpoint ", path_);
    const File file =
        open_listed(file_system_, join(path_, kManifestName), "without it this is not a finished checkpoint");
    return read_text(file, kMaxManifestBytes);
}

std::shared_ptr<ByteSource> DirectorySource::file(const FileRecord& record) {
    return std::make_shared<FileSource>(
        open_listed(file_system_, join(path_, record.name), concat("the manifest of ", path_, " lists it")));
}

}  // namespace tutti::checkpoint
