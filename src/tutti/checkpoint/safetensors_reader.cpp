// checkpoint/safetensors_reader.cpp: SafetensorsFile, the checked view of a file.
#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "tutti/checkpoint/safetensors.h"

namespace tutti::checkpoint {

namespace {

constexpr int64_t kMaxHeaderBytes = 100'000'000;  // the reference reader's limit

SafetensorsHeader read_header(ByteSource& source) {
    const int64_t size = source.size();
    check<DataError>(size >= 8, source.path(), ": ", size, " bytes; a safetensors file has at least 8");
    std::array<std::byte, 8> length_bytes = {};
    source.read(0, length_bytes);
    uint64_t length = 0;
    for (size_t i = 0; i < 8; ++i) length |= std::to_integer<uint64_t>(length_bytes[i]) << (8 * i);
    check<DataError>(length <= static_cast<uint64_t>(kMaxHeaderBytes), source.path(), ": byte 0: a header of ", length,
                     " bytes; at most ", kMaxHeaderBytes, " are allowed (is this a safetensors file?)");
    const int64_t data_start = 8 + static_cast<int64_t>(length);
    check<DataError>(data_start <= size, source.path(), ": byte 0: a header of ", length, " bytes in a file of ", size,
                     " bytes: the file is cut off");
    std::string text(static_cast<size_t>(length), '\0');
    source.read(8, std::as_writable_bytes(std::span(text)));
    return parse_safetensors_header(text, size - data_start, source.path());
}

}  // namespace

SafetensorsFile::SafetensorsFile(std::shared_ptr<ByteSource> source)
    : source_(std::move(source)), header_(read_header(*source_)), by_name_(header_.tensors.size()) {
    std::iota(by_name_.begin(), by_name_.end(), size_t{0});
    std::sort(by_name_.begin(), by_name_.end(),
              [&](size_t a, size_t b) { return header_.tensors[a].name < header_.tensors[b].name; });
}

SafetensorsFile SafetensorsFile::open(FileSystem& file_system, const std::string& path) {
    return SafetensorsFile(file_system.map(path));
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
    const auto place = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                        [&](size_t i, std::string_view key) { return header_.tensors[i].name < key; });
    if (place == by_name_.end() || header_.tensors[*place].name != name) return nullptr;
    return &header_.tensors[*place];
}

const TensorInfo& SafetensorsFile::at(std::string_view name) const {
    const TensorInfo* info = find(name);
    check<DataError>(info != nullptr, path(), " has no tensor '", name, "' among its ", header_.tensors.size());
    return *info;
}

void SafetensorsFile::read(std::string_view name, std::span<std::byte> out) const {
    const TensorInfo& info = at(name);
    check(static_cast<int64_t>(out.size()) == info.bytes(), path(), ": tensor '", name, "' has ", info.bytes(),
          " bytes, the caller has room for ", out.size());
    source_->read(info.begin, out);
}

void SafetensorsFile::read(const TensorInfo& tensor, int64_t offset, std::span<std::byte> out) const {
    const auto wanted = static_cast<int64_t>(out.size());
    check(offset >= 0 && offset <= tensor.bytes() && wanted <= tensor.bytes() - offset, path(), ": tensor '",
          tensor.name, "' has ", tensor.bytes(), " bytes, asked for ", wanted, " from ", offset);
    source_->read(tensor.begin + offset, out);
}

}  // namespace tutti::checkpoint
