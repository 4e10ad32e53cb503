// checkpoint/safetensors_header.cpp: a strict parser for exactly the JSON that a safetensors header may be. A general
// JSON library accepts more than is safe here: duplicate keys, integers turned into doubles, any depth.
#include <algorithm>
#include <array>
#include <set>

#include "tutti/checkpoint/safetensors.h"
#include "tutti/checkpoint/utf8.h"

namespace tutti::checkpoint {

namespace {

constexpr int64_t kLengthBytes = 8;
constexpr size_t kMaxTensors = 1'000'000, kMaxDims = 32;
constexpr std::array kDTypes = {DType::f32, DType::bf16, DType::f16, DType::f64,
                                DType::i32, DType::i64,  DType::u16, DType::u8};

class HeaderParser {
  public:
    HeaderParser(std::string_view text, int64_t data_bytes, const std::string& path)
        : text_(text), data_bytes_(data_bytes), path_(path) {}

    SafetensorsHeader parse() {
        if (const size_t bad = find_invalid_utf8(text_); bad != std::string_view::npos) fail_at(bad, "is not UTF-8");
        std::set<std::string, std::less<>> keys;
        object([&](const std::string& key, size_t start) {
            if (!keys.insert(key).second) fail_at(start, "'", key, "' comes twice");
            if (key == "__metadata__") return metadata();
            if (header_.tensors.size() == kMaxTensors) fail_at(start, "more than ", kMaxTensors, " tensors");
            tensor(key, start);
        });
        skip_space();
        if (at_ != text_.size()) fail_at(at_, "only spaces may follow the header's '}'");
        check_coverage();
        return std::move(header_);
    }

  private:
    template <class... Parts>
    [[noreturn]] void fail_at(size_t at, const Parts&... parts) const {
        throw DataError(concat(path_, ": byte ", kLengthBytes + static_cast<int64_t>(at),
                               ": not a safetensors header: ", parts...));
    }

    void skip_space() {
        while (at_ < text_.size() && std::string_view(" \t\n\r").find(text_[at_]) != std::string_view::npos) ++at_;
    }
    char peek() {
        skip_space();
        if (at_ == text_.size()) fail_at(at_, "it ends too early");
        return text_[at_];
    }
    void expect(char c) {
        const char came = peek();
        if (came != c) fail_at(at_, "expected '", c, "', found '", came, "'");
        ++at_;
    }
    bool take(char c) {
        if (peek() != c) return false;
        ++at_;
        return true;
    }

    // entry(key, its position) reads one value.
    template <class Entry>
    void object(Entry entry) {
        expect('{');
        if (take('}')) return;
        do {
            skip_space();
            const size_t start = at_;
            const std::string key = string();
            expect(':');
            entry(key, start);
        } while (take(','));
        expect('}');
    }

    std::string string() {
        expect('"');
        std::string value;
        while (at_ < text_.size() && text_[at_] != '"') {
            const char c = text_[at_];
            if (static_cast<unsigned char>(c) < 0x20) fail_at(at_, "a control character in a string");
            if (c == '\\') {
                escape(value);
            } else {
                value += c;
                ++at_;
            }
        }
        if (at_ == text_.size()) fail_at(at_, "a string without end");
        ++at_;
        return value;
    }

    void escape(std::string& value) {
        const size_t start = at_++;
        const char c = at_ < text_.size() ? text_[at_++] : '\0';
        constexpr std::string_view kCodes = "\"\\/bfnrt", kValues = "\"\\/\b\f\n\r\t";
        if (const size_t i = kCodes.find(c); i != std::string_view::npos && c != '\0') {
            value += kValues[i];
            return;
        }
        if (c != 'u') fail_at(start, "an unknown escape in a string");
        uint32_t code = hex4(start);
        if (code == 0) fail_at(start, "a NUL character in a string");
        if (code >= 0xd800 && code <= 0xdbff && text_.substr(at_, 2) == "\\u") {
            at_ += 2;
            const uint32_t low = hex4(start);
            if (low < 0xdc00 || low > 0xdfff) fail_at(start, "half a surrogate pair");
            code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        }
        if (code >= 0xd800 && code <= 0xdfff) fail_at(start, "half a surrogate pair");
        append_utf8(value, code);
    }

    uint32_t hex4(size_t start) {
        uint32_t code = 0;
        for (int i = 0; i < 4; ++i, ++at_) {
            const char c = at_ < text_.size() ? text_[at_] : '\0';
            const bool digit = c >= '0' && c <= '9', lower = c >= 'a' && c <= 'f', upper = c >= 'A' && c <= 'F';
            if (!digit && !lower && !upper) fail_at(start, "\\u needs four hexadecimal digits");
            code = code * 16 + static_cast<uint32_t>(digit ? c - '0' : lower ? c - 'a' + 10 : c - 'A' + 10);
        }
        return code;
    }

    int64_t integer() {
        const char first = peek();
        const size_t start = at_;
        int64_t value = 0;
        for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
            if (__builtin_mul_overflow(value, int64_t{10}, &value) ||
                __builtin_add_overflow(value, int64_t{text_[at_] - '0'}, &value))
                fail_at(start, "a number beyond 2^63 - 1");
        }
        // What stops the digits ('.', 'e', '-') is refused by whoever expects ',' or ']' next.
        if (at_ == start || (first == '0' && at_ - start > 1)) fail_at(start, "expected a whole number, digits only");
        return value;
    }

    std::vector<int64_t> integers(size_t at_most, std::string_view what) {
        std::vector<int64_t> values;
        expect('[');
        if (take(']')) return values;
        do {
            if (values.size() == at_most) fail_at(at_, what, " has more than ", at_most, " numbers");
            values.push_back(integer());
        } while (take(','));
        expect(']');
        return values;
    }

    void metadata() {
        object([&](const std::string& key, size_t start) {
            if (peek() != '"') fail_at(at_, "the value of metadata '", key, "' must be a string");
            if (!header_.metadata.emplace(key, string()).second) fail_at(start, "metadata '", key, "' comes twice");
        });
    }

    void tensor(const std::string& name, size_t start) {
        TensorInfo info;
        info.name = name;
        bool has_dtype = false, has_shape = false, has_offsets = false;
        const auto once = [&](bool& seen, const std::string& key, size_t at) {
            if (seen) fail_at(at, "'", key, "' of tensor '", name, "' comes twice");
            seen = true;
        };
        object([&](const std::string& key, size_t at) {
            if (key == "dtype") {
                once(has_dtype, key, at);
                info.dtype = dtype(name);
            } else if (key == "shape") {
                once(has_shape, key, at);
                info.shape = integers(kMaxDims, "a shape");
            } else if (key == "data_offsets") {
                once(has_offsets, key, at);
                const auto offsets = integers(2, "data_offsets");
                if (offsets.size() != 2) fail_at(at, "data_offsets needs two numbers, got ", offsets.size());
                info.begin = offsets[0];
                info.end = offsets[1];
            } else {
                fail_at(at, "tensor '", name, "' has dtype, shape and data_offsets only, not '", key, "'");
            }
        });
        if (!has_dtype || !has_shape || !has_offsets)
            fail_at(start, "tensor '", name, "' needs dtype, shape and data_offsets");
        int64_t bytes = size_of(info.dtype);
        for (int64_t size : info.shape)
            if (__builtin_mul_overflow(bytes, size, &bytes))
                fail_at(start, "the sizes of tensor '", name, "' multiply beyond 2^63 bytes");
        if (info.begin > info.end || info.end > data_bytes_ || info.end - info.begin != bytes)
            fail_at(start, "tensor '", name, "' needs ", bytes, " bytes for its shape, its data_offsets are [",
                    info.begin, ", ", info.end, "], the file has ", data_bytes_, " bytes of data");
        header_.tensors.push_back(std::move(info));
    }

    DType dtype(const std::string& name) {
        const size_t start = (skip_space(), at_);
        const std::string text = string();
        for (DType candidate : kDTypes)
            if (safetensors_name(candidate) == text) return candidate;
        fail_at(start, "tensor '", name, "' has the type '", text,
                "'; supported are F32, BF16, F16, F64, I32, I64, U16 and U8");
    }

    // Every byte of the data belongs to exactly one tensor. A file with holes could be a valid file of another kind
    // too.
    void check_coverage() {
        auto& tensors = header_.tensors;
        std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
            return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
        });
        const int64_t data_start = kLengthBytes + static_cast<int64_t>(text_.size());
        int64_t covered = 0;
        for (TensorInfo& info : tensors) {
            check<DataError>(
                info.begin == covered, path_, ": byte ", data_start + covered, ": tensor '", info.name,
                "' begins at byte ", data_start + info.begin,
                info.begin < covered ? ", inside the tensor before it" : "; the bytes between belong to none");
            covered = info.end;
            info.begin += data_start;
            info.end += data_start;
        }
        check<DataError>(covered == data_bytes_, path_, ": byte ", data_start + covered, ": ", data_bytes_ - covered,
                         " bytes after the last tensor belong to none");
    }

    std::string_view text_;
    int64_t data_bytes_;
    const std::string& path_;
    size_t at_ = 0;
    SafetensorsHeader header_;
};

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view text, int64_t data_bytes, const std::string& path) {
    return HeaderParser(text, data_bytes, path).parse();
}

}  // namespace tutti::checkpoint
