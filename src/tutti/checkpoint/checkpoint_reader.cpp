#include "tutti/checkpoint/checkpoint_reader.h"

#include <algorithm>
#include <cstring>

#include "tutti/base/to_size.h"

namespace tutti::checkpoint {

VerifiedFile::VerifiedFile(std::shared_ptr<ByteSource> file, const FileRecord& record)
    : file_(std::move(file)), record_(record), verified_(record.chunks.size(), false) {
    const int64_t size = file_->size();
    check<DamagedError>(size == record.size, path(), ": ", size, " bytes, the manifest says ", record.size);
}

int64_t VerifiedFile::chunk_size(int64_t chunk) const {
    return std::min(kChunkBytes, record_.size - chunk * kChunkBytes);
}

void VerifiedFile::check_chunk(int64_t chunk, std::span<const std::byte> bytes) {
    const uint64_t actual = xxh3_64(bytes), wanted = record_.chunks[to_size(chunk)];
    const int64_t begin = chunk * kChunkBytes;
    check<DamagedError>(actual == wanted, path(), ": bytes ", begin, " to ", begin + static_cast<int64_t>(bytes.size()),
                        ": the digest is ", to_hex(actual), ", the manifest says ", to_hex(wanted));
    verified_[to_size(chunk)] = true;
}

std::span<const std::byte> VerifiedFile::cached(int64_t chunk) {
    if (cached_chunk_ == chunk) return cache_;
    cached_chunk_ = -1;  // in case reading fails half-way
    cache_.resize(to_size(chunk_size(chunk)));
    file_->read(chunk * kChunkBytes, cache_);
    check_chunk(chunk, cache_);
    cached_chunk_ = chunk;
    return cache_;
}

void VerifiedFile::read(int64_t offset, std::span<std::byte> bytes) {
    const auto wanted = static_cast<int64_t>(bytes.size());
    check(offset >= 0 && offset <= size() && wanted <= size() - offset, path(), ": ", size(), " bytes, asked for ",
          wanted, " from ", offset);
    while (!bytes.empty()) {
        const int64_t chunk = offset / kChunkBytes, inside = offset % kChunkBytes;
        const int64_t part = std::min(chunk_size(chunk) - inside, static_cast<int64_t>(bytes.size()));
        const auto out = bytes.first(to_size(part));
        if (part == chunk_size(chunk)) {  // a whole chunk: straight to where it belongs
            file_->read(offset, out);
            check_chunk(chunk, out);
        } else {
            std::memcpy(out.data(), cached(chunk).data() + inside, out.size());
        }
        bytes = bytes.subspan(out.size());
        offset += part;
    }
}

void VerifiedFile::verify_rest() {
    for (size_t chunk = 0; chunk < verified_.size(); ++chunk)
        if (!verified_[chunk]) cached(static_cast<int64_t>(chunk));
}

void VerifiedFile::verify_all() {
    file_->drop_cache();
    cached_chunk_ = -1;
    Hasher128 whole;
    for (size_t chunk = 0; chunk < verified_.size(); ++chunk) whole.update(cached(static_cast<int64_t>(chunk)));
    const Digest128 actual = whole.digest();
    check<DamagedError>(actual == record_.digest, path(), ": the digest of the file is ", actual,
                        ", the manifest says ", record_.digest);
}

CheckpointReader::CheckpointReader(std::shared_ptr<StateSource> source)
    : source_(std::move(source)), manifest_(parse_manifest(source_->manifest(), join(source_->path(), kManifestName))) {
    for (const FileRecord& record : manifest_.files)
        files_.emplace(record.name, std::make_shared<VerifiedFile>(source_->file(record), record));
}

std::shared_ptr<ByteSource> CheckpointReader::file(std::string_view name) const {
    const auto place = files_.find(name);
    check<DataError>(place != files_.end(), path(), " has no file '", name, "' among its ", files_.size());
    return place->second;
}

void CheckpointReader::verify_share(int reader, int readers) const {
    for (size_t i = 0; i < manifest_.files.size(); ++i) {
        VerifiedFile& file = *files_.at(manifest_.files[i].name);
        if (static_cast<int>(i) % readers == reader)
            file.verify_rest();
        else
            file.leave_to_others();
    }
}

void CheckpointReader::verify_rest() const {
    for (const auto& [name, file] : files_) file->verify_rest();
}

void CheckpointReader::verify_all() const {
    for (const auto& [name, file] : files_) file->verify_all();
}

}  // namespace tutti::checkpoint
