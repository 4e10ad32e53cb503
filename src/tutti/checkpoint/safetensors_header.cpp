// checkpoint/safetensors_header.cpp: the rules of a safetensors header, each checked before a number is used.
#include <algorithm>
#include <array>

#include "tutti/checkpoint/safetensors.h"
#include "tutti/checkpoint/strict_json.h"

namespace tutti::checkpoint {

namespace {

constexpr int64_t kLengthBytes = 8;
constexpr size_t kMaxTensors = 1'000'000, kMaxDims = 32;
constexpr std::array kDTypes = {DType::f32, DType::bf16, DType::f16, DType::f64,
                                DType::i32, DType::i64,  DType::u16, DType::u8};

class HeaderParser {
  public:
    HeaderParser(std::string_view text, int64_t data_bytes, const std::string& path)
        : json_(text, path, "a safetensors header", kLengthBytes),
          data_start_(kLengthBytes + static_cast<int64_t>(text.size())),
          data_bytes_(data_bytes),
          path_(path) {}

    SafetensorsHeader parse() {
        json_.object("", [&](const std::string& key, size_t start) {
            if (key == "__metadata__") return metadata();
            if (header_.tensors.size() == kMaxTensors) json_.fail_at(start, "more than ", kMaxTensors, " tensors");
            tensor(key, start);
        });
        json_.end();
        check_coverage();
        return std::move(header_);
    }

  private:
    void metadata() {
        json_.object("metadata ", [&](const std::string& key, size_t) {
            if (json_.peek() != '"') json_.fail_at(json_.at(), "the value of metadata '", key, "' must be a string");
            header_.metadata.emplace(key, json_.string());
        });
    }

    void tensor(const std::string& name, size_t start) {
        TensorInfo info;
        info.name = name;
        bool has_dtype = false, has_shape = false, has_offsets = false;
        json_.object("in tensor '" + name + "': ", [&](const std::string& key, size_t at) {
            if (key == "dtype") {
                has_dtype = true;
                info.dtype = dtype(name);
            } else if (key == "shape") {
                has_shape = true;
                info.shape = json_.integers(kMaxDims, "a shape");
            } else if (key == "data_offsets") {
                has_offsets = true;
                const auto offsets = json_.integers(2, "data_offsets");
                if (offsets.size() != 2) json_.fail_at(at, "data_offsets needs two numbers, got ", offsets.size());
                info.begin = offsets[0];
                info.end = offsets[1];
            } else {
                json_.fail_at(at, "tensor '", name, "' has dtype, shape and data_offsets only, not '", key, "'");
            }
        });
        if (!has_dtype || !has_shape || !has_offsets)
            json_.fail_at(start, "tensor '", name, "' needs dtype, shape and data_offsets");
        int64_t bytes = size_of(info.dtype);
        for (int64_t size : info.shape)
            if (__builtin_mul_overflow(bytes, size, &bytes))
                json_.fail_at(start, "the sizes of tensor '", name, "' multiply beyond 2^63 bytes");
        if (info.begin > info.end || info.end > data_bytes_ || info.end - info.begin != bytes)
            json_.fail_at(start, "tensor '", name, "' needs ", bytes, " bytes for its shape, its data_offsets are [",
                          info.begin, ", ", info.end, "], the file has ", data_bytes_, " bytes of data");
        header_.tensors.push_back(std::move(info));
    }

    DType dtype(const std::string& name) {
        json_.peek();
        const size_t start = json_.at();
        const std::string text = json_.string();
        for (DType candidate : kDTypes)
            if (safetensors_name(candidate) == text) return candidate;
        json_.fail_at(start, "tensor '", name, "' has the type '", text,
                      "'; supported are F32, BF16, F16, F64, I32, I64, U16 and U8");
    }

    // Every byte of the data belongs to exactly one tensor. A file with holes could be a valid file of another kind
    // too.
    void check_coverage() {
        auto& tensors = header_.tensors;
        std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
            return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
        });
        int64_t covered = 0;
        for (TensorInfo& info : tensors) {
            check<DataError>(
                info.begin == covered, path_, ": byte ", data_start_ + covered, ": tensor '", info.name,
                "' begins at byte ", data_start_ + info.begin,
                info.begin < covered ? ", inside the tensor before it" : "; the bytes between belong to none");
            covered = info.end;
            info.begin += data_start_;
            info.end += data_start_;
        }
        check<DataError>(covered == data_bytes_, path_, ": byte ", data_start_ + covered, ": ", data_bytes_ - covered,
                         " bytes after the last tensor belong to none");
    }

    StrictJson json_;
    int64_t data_start_, data_bytes_;
    const std::string& path_;
    SafetensorsHeader header_;
};

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view text, int64_t data_bytes, const std::string& path) {
    return HeaderParser(text, data_bytes, path).parse();
}

}  // namespace tutti::checkpoint
