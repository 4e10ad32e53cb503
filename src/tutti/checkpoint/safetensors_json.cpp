// checkpoint/safetensors_json.cpp: the untrusted JSON of safetensors: a file's header and the index of a sharded model.
// Each rule is checked before a value is used. nlohmann::json alone accepts more than is safe here: a key that comes
// twice, any depth, a byte order mark, a NUL byte as the end of the text.
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "tutti/checkpoint/sharded.h"

namespace tutti::checkpoint {

namespace {

using Json = nlohmann::json;

constexpr int64_t kLengthBytes = 8;
constexpr size_t kMaxTensors = 1'000'000, kMaxDims = 32, kMaxMessage = 300;
constexpr int kMaxDepth = 4;  // of what lies inside the outermost object
constexpr std::array kDTypes = {DType::f32, DType::bf16, DType::f16, DType::f64,
                                DType::i32, DType::i64,  DType::u16, DType::u8};

// Keys and depth are checked as they are read, before a document of them is built.
Json parse_strict(std::string_view text) {
    check<DataError>(text.find('\0') == std::string_view::npos && !text.starts_with("\xef\xbb\xbf"),
                     "a NUL byte or a byte order mark");
    std::vector<std::set<std::string>> keys;  // of each open object
    const auto accept = [&](int depth, Json::parse_event_t event, const Json& parsed) {
        check<DataError>(depth <= kMaxDepth, "nested too deeply");
        if (event == Json::parse_event_t::object_start) keys.emplace_back();
        if (event == Json::parse_event_t::object_end) keys.pop_back();
        if (parsed.is_string()) {
            const auto& string = parsed.get_ref<const std::string&>();
            check<DataError>(string.find('\0') == std::string::npos, "a NUL character in a string");
            check<DataError>(event != Json::parse_event_t::key || keys.back().insert(string).second, "'", string,
                             "' comes twice");
        }
        return true;
    };
    Json json = Json::parse(text, accept);
    check<DataError>(json.is_object(), "expected an object");
    return json;
}

// use(json) of the text, which begins at `first_byte` of the file. DataError: "x: byte 12: not an index: ...", the byte
// when the text is no JSON.
template <class Use>
auto read_json(std::string_view text, const std::string& path, std::string_view what, int64_t first_byte, Use use) {
    try {
        return use(parse_strict(text));
    } catch (const Json::parse_error& error) {  // its bytes count from 1; it quotes the token, which may be long
        throw DataError(concat(path, ": byte ", first_byte + static_cast<int64_t>(error.byte) - 1, ": not ", what, ": ",
                               std::string_view(error.what()).substr(0, kMaxMessage)));
    } catch (const Json::exception& error) {  // a value of another type
        throw DataError(concat(path, ": not ", what, ": ", error.what()));
    } catch (const DataError& error) {
        throw DataError(concat(path, ": not ", what, ": ", error.what()));
    }
}

std::vector<int64_t> integers(const Json& json, size_t at_most, std::string_view what) {
    check<DataError>(json.is_array() && json.size() <= at_most, what, " is no list or has more than ", at_most,
                     " numbers");
    std::vector<int64_t> values;
    for (const Json& value : json) {
        check<DataError>(value.is_number_unsigned() && value.get<uint64_t>() <= uint64_t{INT64_MAX}, what,
                         " needs whole numbers up to 2^63 - 1, digits only");
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
    const TensorInfo info{name, dtype_from(json["dtype"].get<std::string>(), name),
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
                value.get_to(read.metadata);
            else
                read.tensors.push_back(tensor_from(name, value, data_bytes));
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
            check<DataError>(is_plain_file_name(file) && file.ends_with(".safetensors"), "tensor '", tensor,
                             "' is in '", file, "', which is not the plain name of a .safetensors file");
        return files;
    });
}

}  // namespace tutti::checkpoint
