// checkpoint/safetensors_json.cpp: the untrusted JSON of safetensors: a file's header and the index of a sharded model.
// Each rule is checked before a value is used.
#include <algorithm>
#include <array>

#include "tutti/base/json.h"
#include "tutti/checkpoint/sharded.h"

namespace tutti::checkpoint {

namespace {

constexpr int64_t kLengthBytes = 8;
constexpr size_t kMaxTensors = 1'000'000, kMaxDims = 32;
constexpr int kMaxDepth = 5;
constexpr std::array kDTypes = {DType::f32, DType::bf16, DType::f16, DType::f64,
                                DType::i32, DType::i64,  DType::u16, DType::u8};

std::string without_nul(const std::string& text) {
    check<DataError>(text.find('\0') == std::string::npos, "a NUL character in a string");
    return text;
}

// use(json) of the text, which begins at `first_byte` of the file. DataError: "x: byte 12: not an index: ...", the byte
// when the text is no JSON.
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
    check<DataError>(json.is_array() && json.size() <= at_most, what, " is no list or has more than ", at_most,
                     " numbers");
    std::vector<int64_t> values;
    for (const Json& value : json) {
        check<DataError>(value.is_integer(0, INT64_MAX), what, " needs whole numbers up to 2^63 - 1, digits only");
        values.push_back(value.get<int64_t>());
    }
    return values;
}

DType dtype_from(const std::string& text, const std::string& tensor) {
    for (DType candidate : kDTypes)
        if (safetensors_name(candidate) == text) return candidate;
    throw DataError(concat("tensor '", tensor, "' has the type '", text,
                           "'; supported are F32, BF16, F16, F64, I32, I64, U16 and U8"));
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

// Every byte of the data belongs to exactly one tensor: a file with holes could be a valid file of another kind too.
// Turns offsets into the data to offsets into the file.
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

}  // namespace tutti::checkpoint
