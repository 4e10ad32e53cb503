// checkpoint/safetensors.h: the file format of weights and of optimizer state. An 8-byte length, a JSON header, the
// bytes of the tensors without holes (huggingface/safetensors). Files are untrusted: every number is checked before
// use.
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
    FilePart bytes;  // C order, little-endian; must live until the file is written, or is made then
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

// An open file whose header has been checked completely. Errors are DataError and name the file.
class SafetensorsFile {
  public:
    explicit SafetensorsFile(std::shared_ptr<ByteSource> source);
    static SafetensorsFile open(FileSystem& file_system, const std::string& path);

    const std::string& path() const { return source_->path(); }
    const std::vector<TensorInfo>& tensors() const { return header_.tensors; }
    const Metadata& metadata() const { return header_.metadata; }
    const TensorInfo* find(std::string_view name) const;  // null if absent
    const TensorInfo& at(std::string_view name) const;    // or DataError

    // The whole tensor; `out` has exactly its size. Values are not looked at: NaN comes through.
    void read(std::string_view name, std::span<std::byte> out) const;
    // `out.size()` bytes from byte `offset` of the tensor: a rank reads its shard only.
    void read(const TensorInfo& tensor, int64_t offset, std::span<std::byte> out) const;

  private:
    std::shared_ptr<ByteSource> source_;
    SafetensorsHeader header_;
    std::vector<size_t> by_name_;  // indices into tensors(), sorted by name
};

}  // namespace tutti::checkpoint
