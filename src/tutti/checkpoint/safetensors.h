// checkpoint/safetensors.h: the file format of weights and of optimizer state (huggingface/safetensors): an 8-byte
// length, a JSON header, the bytes of the tensors without gaps; and directories of such files with an index. Files are
// untrusted: every number is checked before use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/dtype.h"
#include "tutti/checkpoint/file_system.h"
#include "tutti/checkpoint/file_writer.h"

namespace tutti::checkpoint {

using Metadata = std::map<std::string, std::string>;

struct TensorToWrite {
    std::string name;
    DType dtype = DType::f32;
    std::vector<int64_t> shape;
    FilePart bytes;  // C order, little-endian; lives until the file is written, or is made then
};

// The file `name` with these tensors, in the order of the reference writer (wider types first, then by name).
FileToWrite safetensors_file(std::string name, std::vector<TensorToWrite> tensors,
                             const Metadata& metadata = {{"format", "pt"}});

struct TensorInfo {
    std::string name;
    DType dtype = DType::f32;
    std::vector<int64_t> shape;
    int64_t begin = 0, end = 0;  // bytes of the file
    int64_t bytes() const { return end - begin; }
};

struct SafetensorsHeader {
    std::vector<TensorInfo> tensors;  // in file order
    Metadata metadata;
};

std::string_view safetensors_name(DType dtype);  // "BF16"

// `text` is the JSON of a file that has `data_bytes` after it; positions in messages count from the start of the file.
SafetensorsHeader parse_safetensors_header(std::string_view text, int64_t data_bytes, const std::string& path);

// An open file with a fully checked header. Errors are DataError and name the file.
class SafetensorsFile {
  public:
    explicit SafetensorsFile(std::shared_ptr<ByteSource> source);
    static SafetensorsFile open(FileSystem& file_system, const std::string& path);

    const std::string& path() const { return source_->path(); }
    const std::vector<TensorInfo>& tensors() const { return header_.tensors; }
    const Metadata& metadata() const { return header_.metadata; }
    const TensorInfo* find(std::string_view name) const;  // null if absent
    const TensorInfo& at(std::string_view name) const;    // or DataError

    // The whole tensor; `out` has exactly the tensor's size. Values are not checked: NaN is passed on.
    void read(std::string_view name, std::span<std::byte> out) const;
    // `out.size()` bytes from byte `offset` of the tensor: a rank reads its shard only.
    void read(const TensorInfo& tensor, int64_t offset, std::span<std::byte> out) const;

  private:
    std::shared_ptr<ByteSource> source_;
    SafetensorsHeader header_;
    std::vector<size_t> by_name_;  // indices into tensors(), sorted by name
};

constexpr std::string_view kSingleFile = "model.safetensors", kIndexFile = "model.safetensors.index.json";

// Tensor name to file name. DataError names the file. A file name is plain (is_plain_file_name) and ends in
// ".safetensors", so it cannot lead out of the directory.
std::map<std::string, std::string> parse_index(std::string_view text, const std::string& path);
// The inverse of parse_index: {"metadata":{"total_size":N},"weight_map":{...}}, keys sorted.
std::string write_index(const std::map<std::string, std::string>& weight_map, int64_t total_bytes);

// The tensors of a directory in Hugging Face's layout: model.safetensors, or shards with an index (formats.md B1.2).
class ShardedSafetensors {
  public:
    // Reads model.safetensors if it exists, as transformers does, else the index. DataError lists every tensor on which
    // index and shards disagree.
    static ShardedSafetensors open(FileSystem& file_system, const std::string& directory);

    const std::string& path() const { return path_; }  // of the single file or of the index
    std::vector<std::string> names() const;            // sorted
    const TensorInfo* find(std::string_view name) const;
    // `out.size()` bytes from byte `offset` of the tensor.
    void read(std::string_view name, int64_t offset, std::span<std::byte> out) const;

  private:
    std::string path_;
    std::vector<SafetensorsFile> files_;
    std::map<std::string, size_t, std::less<>> file_of_;  // index into files_
};

}  // namespace tutti::checkpoint
