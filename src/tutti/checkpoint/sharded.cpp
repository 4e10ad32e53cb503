#include "tutti/checkpoint/sharded.h"

#include <algorithm>
#include <set>

namespace tutti::checkpoint {

namespace {

constexpr int64_t kMaxIndexBytes = 100'000'000;  // as a safetensors header
constexpr size_t kListed = 20;                   // problems in a message

}  // namespace

std::string write_index(const std::map<std::string, std::string>& weight_map, int64_t total_bytes) {
    std::string json = concat("{\n  \"metadata\": {\n    \"total_size\": ", total_bytes, "\n  },\n  \"weight_map\": {");
    for (const auto& [tensor, file] : weight_map) {
        check(tensor.find_first_of("\"\\") == std::string::npos, "an index: '", tensor, "' is no parameter name");
        json += concat(json.back() == '{' ? "\n" : ",\n", "    \"", tensor, "\": \"", file, '"');
    }
    return json + "\n  }\n}\n";
}

ShardedSafetensors ShardedSafetensors::open(FileSystem& file_system, const std::string& directory) {
    ShardedSafetensors all;
    all.path_ = join(directory, kSingleFile);
    if (file_system.kind(all.path_) != FileKind::none) {
        all.files_.push_back(SafetensorsFile::open(file_system, all.path_));
        for (const TensorInfo& tensor : all.files_[0].tensors()) all.file_of_[tensor.name] = 0;
        return all;
    }
    all.path_ = join(directory, kIndexFile);
    check<DataError>(file_system.kind(all.path_) != FileKind::none, directory, ": holds neither ", kSingleFile, " nor ",
                     kIndexFile, "; weights in another format must be converted to safetensors first");
    const auto weight_map = parse_index(read_text(File::open(file_system, all.path_), kMaxIndexBytes), all.path_);
    std::set<std::string> names;
    for (const auto& [tensor, file] : weight_map) names.insert(file);
    std::vector<std::string> problems;
    for (const std::string& name : names) {
        all.files_.push_back(SafetensorsFile::open(file_system, join(directory, name)));
        for (const TensorInfo& tensor : all.files_.back().tensors()) {
            const auto listed = weight_map.find(tensor.name);
            if (listed == weight_map.end())
                problems.push_back(concat(name, " holds ", tensor.name, ", which the index does not list"));
            else if (listed->second != name)
                problems.push_back(concat(name, " holds ", tensor.name, ", which the index has in ", listed->second));
            else
                all.file_of_[tensor.name] = all.files_.size() - 1;
        }
    }
    for (const auto& [tensor, file] : weight_map)
        if (!all.file_of_.contains(tensor)) problems.push_back(concat(file, " does not hold ", tensor));
    std::string text;
    for (size_t i = 0; i < std::min(problems.size(), kListed); ++i) text += "\n  " + problems[i];
    if (problems.size() > kListed) text += concat("\n  and ", problems.size() - kListed, " more");
    check<DataError>(problems.empty(), all.path_, ": index and shards do not agree:", text);
    return all;
}

std::vector<std::string> ShardedSafetensors::names() const {
    std::vector<std::string> names;
    for (const auto& [name, file] : file_of_) names.push_back(name);
    return names;
}

const TensorInfo* ShardedSafetensors::find(std::string_view name) const {
    const auto file = file_of_.find(name);
    return file == file_of_.end() ? nullptr : files_[file->second].find(name);
}

void ShardedSafetensors::read(std::string_view name, int64_t offset, std::span<std::byte> out) const {
    const auto file = file_of_.find(name);
    check<DataError>(file != file_of_.end(), path_, " has no tensor '", name, "'");
    const SafetensorsFile& holder = files_[file->second];
    holder.read(holder.at(name), offset, out);
}

}  // namespace tutti::checkpoint
