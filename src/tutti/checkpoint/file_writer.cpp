#include "tutti/checkpoint/file_writer.h"

#include <algorithm>
#include <cstring>

#include "tutti/checkpoint/owner.h"

namespace tutti::checkpoint {

namespace {

// Walks over head and body in spans of kChunkBytes. A chunk inside one piece is handed out where it lies; only a chunk
// over a seam is gathered into the buffer.
class ChunkStream {
  public:
    explicit ChunkStream(const FileToWrite& content)
        : name_(content.name), body_(content.body), piece_(std::as_bytes(std::span(content.head))) {}

    std::span<const std::byte> next(int64_t bytes) {
        skip_empty();
        const auto wanted = static_cast<size_t>(bytes);
        if (piece_.size() - at_ >= wanted) {
            const auto chunk = piece_.subspan(at_, wanted);
            at_ += wanted;
            return chunk;
        }
        buffer_.resize(wanted);
        for (size_t filled = 0; filled < wanted; skip_empty()) {
            const size_t part = std::min(wanted - filled, piece_.size() - at_);
            std::memcpy(buffer_.data() + filled, piece_.data() + at_, part);
            filled += part;
            at_ += part;
        }
        return buffer_;
    }

  private:
    void skip_empty() {
        for (; next_ < body_.size() && at_ == piece_.size(); ++next_, at_ = 0) {
            const FilePart& piece = body_[next_];
            piece_ = piece.make ? piece.make() : piece.bytes;
            check(static_cast<int64_t>(piece_.size()) == piece.size, name_, ": a piece of ", piece.size,
                  " bytes was promised, ", piece_.size(), " came");
        }
    }
    const std::string& name_;
    const std::vector<FilePart>& body_;
    std::span<const std::byte> piece_;  // the one that is being read
    std::vector<std::byte> buffer_;
    size_t next_ = 0, at_ = 0;
};

}  // namespace

int64_t FileToWrite::size() const {
    auto bytes = static_cast<int64_t>(head.size());
    for (const auto& piece : body) bytes += piece.size;
    return bytes;
}

NewFile::NewFile(FileSystem& file_system, const std::string& path, int64_t size)
    : file_(File::create(file_system, path)), size_(size) {
    file_.allocate(size);
}

FileRecord NewFile::write(const FileToWrite& content) {
    check(content.size() == size_, file_.path(), ": ", size_, " bytes were reserved, ", content.size(), " came");
    FileRecord record{content.name, size_, {}, {}};
    record.chunks.reserve(static_cast<size_t>(chunk_count(size_)));
    ChunkStream stream(content);
    Hasher128 whole;
    for (int64_t offset = 0; offset < size_; offset += kChunkBytes) {
        const auto chunk = stream.next(std::min(kChunkBytes, size_ - offset));
        record.chunks.push_back(xxh3_64(chunk));
        whole.update(chunk);
        file_.write_all(chunk, offset);
    }
    record.digest = whole.digest();
    file_.sync();
    file_.close();
    return record;
}

FileRecord write_file_atomically(FileSystem& file_system, const std::string& directory, const FileToWrite& content) {
    check<UsageError>(is_plain_file_name(content.name), "'", content.name, "' is not a plain file name");
    const std::string path = join(directory, content.name);
    const std::string temporary = concat(path, ".tmp-", this_owner());
    remove_tree(file_system, temporary);  // of an earlier process with our id that was killed
    try {
        FileRecord record = NewFile(file_system, temporary, content.size()).write(content);
        file_system.rename(temporary, path);
        file_system.fsync_directory(directory);
        return record;
    } catch (const Error&) {
        try {
            remove_tree(file_system, temporary);
        } catch (const IoError&) {  // the first error is the one that matters
        }
        throw;
    }
}

}  // namespace tutti::checkpoint
