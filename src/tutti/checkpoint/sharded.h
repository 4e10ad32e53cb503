// checkpoint/sharded.h: the tensors of a directory in Hugging Face's layout: model.safetensors, or shards with an index
// (formats.md B1.2). Index and shards are untrusted.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/checkpoint/safetensors.h"

namespace tutti::checkpoint {

constexpr std::string_view kSingleFile = "model.safetensors", kIndexFile = "model.safetensors.index.json";

// Tensor name to file name. DataError names the file; a file name is plain (file.h) and ends in ".safetensors", so
// it cannot leave the directory.
std::map<std::string, std::string> parse_index(std::string_view text, const std::string& path);
// The inverse: {"metadata":{"total_size":N},"weight_map":{...}}, keys sorted.
std::string write_index(const std::map<std::string, std::string>& weight_map, int64_t total_bytes);

class ShardedSafetensors {
  public:
    // model.safetensors if it is there, as transformers does, else the index. DataError lists every tensor that the
    // index and the shards do not agree on.
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
