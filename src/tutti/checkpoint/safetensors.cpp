// checkpoint/safetensors.cpp: writing (the header is assembled here, file_writer.cpp streams header and tensors to
// disk); the untrusted JSON of headers and indices, where each rule is checked before a value is used; reading.
#include "tutti/checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <set>
#include <utility>

#include "tutti/base/json.h"
#include "tutti/base/to_size.h"

namespace tutti::checkpoint {

static_assert(std::endian::native == std::endian::little, "safetensors are little-endian and written as they lie");

namespace {

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kMaxHeaderBytes = 100'000'000;  // the reference reader's limit; an index gets the same
constexpr size_t kMaxTensors = 1'000'000, kMaxDims = 32;
constexpr int kMaxDepth = 5;
constexpr size_t kListed = 20;  // problems in a message

// The types that Tutti reads and writes, in the reference's order of alignment. Ties are broken by this order too.
// Last a name that is read only: masks of old GPT-2 files, which are no weights.
constexpr std::array<std::pair<DType, std::string_view>, 9> kTypes = {{{DType::u8, "U8"},
                                                                       {DType::u16, "U16"},
                                                                       {DType::f16, "F16"},
                                                                       {DType::bf16, "BF16"},
                                                                       {DType::i32, "I32"},
                                                                       {DType::f32, "F32"},
                                                                       {DType::f64, "F64"},
                                                                       {DType::i64, "I64"},
                                                                       {DType::u8, "BOOL"}}};

size_t order_of(DType dtype) {
    for (size_t i = 0; i < kTypes.size(); ++i)
        if (kTypes[i].first == dtype) return i;
    throw Error(concat("safetensors: no type for ", dtype));
}

std::string json_string(std::string_view text) {
    check(text.find('\0') == std::string_view::npos, "safetensors: a name or metadata value has a NUL byte");
    try {
        return Json(text).dump();
    } catch (const DataError& error) {
        throw Error(concat("safetensors: ", error.what()));
    }
}

int64_t bytes_of(const TensorToWrite& tensor) {
    int64_t bytes = size_of(tensor.dtype);
    for (int64_t size : tensor.shape)
        check(size >= 0 && !__builtin_mul_overflow(bytes, size, &bytes), "safetensors: tensor '", tensor.name,
              "' has a size of ", size, " or more than 2^63 bytes");
    return bytes;
}

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
    std::string text(to_size(length), '\0');
    source.read(8, std::as_writable_bytes(std::span(text)));
    return parse_safetensors_header(text, size - data_start, source.path());
}

}  // namespace

std::string_view safetensors_name(DType dtype) { return kTypes[order_of(dtype)].second; }

FileToWrite safetensors_file(std::string name, std::vector<TensorToWrite> tensors, const Metadata& metadata) {
    std::sort(tensors.begin(), tensors.end(), [](const TensorToWrite& a, const TensorToWrite& b) {
        return std::pair(order_of(b.dtype), std::string_view(a.name)) <
               std::pair(order_of(a.dtype), std::string_view(b.name));
    });
    std::string json = "{";
    if (!metadata.empty()) {
        json += "\"__metadata__\":{";
        for (const auto& [key, value] : metadata) {
            if (json.back() != '{') json += ',';
            json += json_string(key) + ':' + json_string(value);
        }
        json += '}';
    }
    FileToWrite file;
    file.name = std::move(name);
    std::vector<std::string_view> names;
    int64_t begin = 0;
    for (const TensorToWrite& tensor : tensors) {
        const int64_t bytes = bytes_of(tensor);
        check(bytes == tensor.bytes.size, "safetensors: tensor '", tensor.name, "' needs ", bytes,
              " bytes for its shape, got ", tensor.bytes.size);
        check(tensor.name != "__metadata__", "safetensors: a tensor cannot be named __metadata__");
        names.push_back(tensor.name);
        if (json.size() > 1) json += ',';
        json += concat(json_string(tensor.name), ":{\"dtype\":\"", safetensors_name(tensor.dtype), "\",\"shape\":[",
                       joined(tensor.shape, ","), "],\"data_offsets\":[", begin, ',', begin + bytes, "]}");
        file.body.push_back(tensor.bytes);
        begin += bytes;
    }
    json += '}';
    std::sort(names.begin(), names.end());
    const auto twice = std::adjacent_find(names.begin(), names.end());
    check(twice == names.end(), "safetensors: two tensors are named '", twice == names.end() ? "" : *twice, "'");

    json.append((8 - json.size() % 8) % 8, ' ');  // so that the data is aligned to 8 in the file
    check(json.size() <= kMaxHeaderBytes, "safetensors: a header of ", json.size(),
          " bytes; readers accept 100,000,000");
    for (int i = 0; i < 8; ++i) file.head += static_cast<char>(static_cast<unsigned char>(json.size() >> (8 * i)));
    file.head += json;
    return file;
}

namespace {

std::string without_nul(const std::string& text) {
    check<DataError>(text.find('\0') == std::string::npos, "a NUL character in a string");
    return text;
}

// use(json) of the text, which begins at `first_byte` of the file. DataError: "x: byte 12: not an index: ..."; the byte
// is named when the text is not JSON.
template <class Use>
auto read_json(std::string_view text, const std::string& path, std::string_view what, int64_t first_byte, Use use) {
    try {
        check<DataError>(!text.starts_with("\xef\xbb\xbf"), "it begins with a byte order mark");
        const Json json = Json::parse(text, kMaxDepth);
        check<DataError>(json.is_object(), "expected an object");
        return use(json);
    } catch (const JsonError& error) {
        throw DataError(
            concat(path, ": byte ", first_byte + static_cast<int64_t>(error.byte), ": not ", what, ": ", error.reason));
    } catch (const DataError& error) {
        throw DataError(concat(path, ": not ", what, ": ", error.what()));
    }
}

std::vector<int64_t> integers(const Json& json, size_t at_most, std::string_view what) {
    check<DataError>(json.is_array() && json.size() <= at_most, what, " is not a list or has more than ", at_most,
                     " numbers");
    std::vector<int64_t> values;
    for (const Json& value : json) {
        check<DataError>(value.is_integer(0, INT64_MAX), what, " needs whole numbers up to 2^63 - 1, digits only");
        values.push_back(value.get<int64_t>());
    }
    return values;
}

DType dtype_from(const std::string& text, const std::string& tensor) {
    for (const auto& [dtype, name] : kTypes)
        if (name == text) return dtype;
    throw DataError(concat("tensor '", tensor, "' has the type '", text,
                           "'; supported are F32, BF16, F16, F64, I32, I64, U16, U8 and BOOL"));
}

TensorInfo tensor_from(const std::string& name, const Json& json, int64_t data_bytes) {
    check<DataError>(
        json.size() == 3 && json.contains("dtype") && json.contains("shape") && json.contains("data_offsets"),
        "tensor '", name, "' needs dtype, shape and data_offsets, and nothing else");
    const auto offsets = integers(json["data_offsets"], 2, "data_offsets");
    check<DataError>(offsets.size() == 2, "data_offsets of tensor '", name, "' needs two numbers");
    const TensorInfo info{name, dtype_from(json["dtype"].text(), name),
                          integers(json["shape"], kMaxDims, "the shape of tensor '" + name + "'"), offsets[0],
                          offsets[1]};
    int64_t bytes = size_of(info.dtype);
    for (int64_t size : info.shape)
        check<DataError>(!__builtin_mul_overflow(bytes, size, &bytes), "the sizes of tensor '", name,
                         "' multiply beyond 2^63 bytes");
    check<DataError>(info.begin <= info.end && info.end <= data_bytes && info.end - info.begin == bytes, "tensor '",
                     name, "' needs ", bytes, " bytes for its shape, its data_offsets are [", info.begin, ", ",
                     info.end, "], the file has ", data_bytes, " bytes of data");
    return info;
}

// Checks that every byte of the data belongs to exactly one tensor: a file with gaps could be a valid file of another
// kind too. Turns offsets into the data into offsets into the file.
void check_coverage(std::vector<TensorInfo>& tensors, int64_t data_start, int64_t data_bytes, const std::string& path) {
    std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
        return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
    int64_t covered = 0;
    for (TensorInfo& info : tensors) {
        check<DataError>(info.begin == covered, path, ": byte ", data_start + covered, ": tensor '", info.name,
                         "' begins at byte ", data_start + info.begin,
                         info.begin < covered ? ", inside the tensor before it" : "; the bytes between belong to none");
        covered = info.end;
        info.begin += data_start;
        info.end += data_start;
    }
    check<DataError>(covered == data_bytes, path, ": byte ", data_start + covered, ": ", data_bytes - covered,
                     " bytes after the last tensor belong to none");
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view text, int64_t data_bytes, const std::string& path) {
    SafetensorsHeader header = read_json(text, path, "a safetensors header", kLengthBytes, [&](const Json& json) {
        SafetensorsHeader read;
        check<DataError>(json.size() <= kMaxTensors, "more than ", kMaxTensors, " tensors");
        for (const auto& [name, value] : json.items()) {
            check<DataError>(value.is_object(), "the value of '", name, "' must be an object");
            if (name == "__metadata__")
                for (const auto& [key, entry] : value.items())
                    read.metadata[without_nul(key)] = without_nul(entry.text());
            else
                read.tensors.push_back(tensor_from(without_nul(name), value, data_bytes));
        }
        return read;
    });
    check_coverage(header.tensors, kLengthBytes + static_cast<int64_t>(text.size()), data_bytes, path);
    return header;
}

std::map<std::string, std::string> parse_index(std::string_view text, const std::string& path) {
    return read_json(text, path, "an index of safetensors", 0, [](const Json& json) {
        check<DataError>(json.contains("weight_map"), "it has no weight_map");
        check<DataError>(json["weight_map"].is_object(), "its weight_map must be an object");
        auto files = json["weight_map"].get<std::map<std::string, std::string>>();
        for (const auto& [tensor, file] : files)
            check<DataError>(is_plain_file_name(without_nul(file)) && file.ends_with(".safetensors"), "tensor '",
                             tensor, "' is in '", file, "', which is not the plain name of a .safetensors file");
        return files;
    });
}

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

std::string write_index(const std::map<std::string, std::string>& weight_map, int64_t total_bytes) {
    std::string json = concat("{\n  \"metadata\": {\n    \"total_size\": ", total_bytes, "\n  },\n  \"weight_map\": {");
    for (const auto& [tensor, file] : weight_map) {
        check(tensor.find_first_of("\"\\") == std::string::npos, "an index: '", tensor, "' is not a parameter name");
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
    const auto weight_map = parse_index(read_text(File::open(file_system, all.path_), kMaxHeaderBytes), all.path_);
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
