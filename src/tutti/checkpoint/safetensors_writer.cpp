// checkpoint/safetensors_writer.cpp: puts the header together; file_writer.cpp streams it and the tensors to disk.
#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "tutti/base/json.h"
#include "tutti/checkpoint/safetensors.h"

namespace tutti::checkpoint {

static_assert(std::endian::native == std::endian::little, "safetensors are little-endian and written as they lie");

namespace {

// The types that Tutti reads and writes, in the reference's order of alignment. Ties are broken by this order too.
constexpr std::array<std::pair<DType, std::string_view>, 8> kTypes = {{{DType::u8, "U8"},
                                                                       {DType::u16, "U16"},
                                                                       {DType::f16, "F16"},
                                                                       {DType::bf16, "BF16"},
                                                                       {DType::i32, "I32"},
                                                                       {DType::f32, "F32"},
                                                                       {DType::f64, "F64"},
                                                                       {DType::i64, "I64"}}};

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
        json += concat(json_string(tensor.name), ":{\"dtype\":\"", safetensors_name(tensor.dtype), "\",\"shape\":[");
        for (size_t i = 0; i < tensor.shape.size(); ++i) json += concat(i ? "," : "", tensor.shape[i]);
        json += concat("],\"data_offsets\":[", begin, ',', begin + bytes, "]}");
        file.body.push_back(tensor.bytes);
        begin += bytes;
    }
    json += '}';
    std::sort(names.begin(), names.end());
    const auto twice = std::adjacent_find(names.begin(), names.end());
    check(twice == names.end(), "safetensors: two tensors are named '", twice == names.end() ? "" : *twice, "'");

    json.append((8 - json.size() % 8) % 8, ' ');  // so that the data is aligned to 8 in the file
    check(json.size() <= 100'000'000, "safetensors: a header of ", json.size(), " bytes; readers accept 100,000,000");
    for (int i = 0; i < 8; ++i) file.head += static_cast<char>(static_cast<unsigned char>(json.size() >> (8 * i)));
    file.head += json;
    return file;
}

}  // namespace tutti::checkpoint
