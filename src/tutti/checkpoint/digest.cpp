#include "tutti/checkpoint/digest.h"

#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <new>
#include <sstream>

#include "tutti/base/digits.h"
#include "tutti/base/to_size.h"
#include "tutti/checkpoint/file_writer.h"

namespace tutti::checkpoint {

struct Hasher128::State {
    XXH3_state_t* xxh = XXH3_createState();  // 64-byte aligned, which plain new of the struct would not promise
    State() {
        if (xxh == nullptr || XXH3_128bits_reset(xxh) != XXH_OK) throw std::bad_alloc();
    }
    ~State() { XXH3_freeState(xxh); }
    State(const State&) = delete;
    State& operator=(const State&) = delete;
};

Hasher128::Hasher128() : state_(std::make_unique<State>()) {}
Hasher128::~Hasher128() = default;
Hasher128::Hasher128(Hasher128&&) noexcept = default;
Hasher128& Hasher128::operator=(Hasher128&&) noexcept = default;

void Hasher128::update(std::span<const std::byte> bytes) {
    if (!bytes.empty()) XXH3_128bits_update(state_->xxh, bytes.data(), bytes.size());
}

Digest128 Hasher128::digest() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(state_->xxh);
    return {hash.high64, hash.low64};
}

uint64_t xxh3_64(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

Digest128 xxh3_128(std::span<const std::byte> bytes) {
    const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
    return {hash.high64, hash.low64};
}

std::string to_hex(Digest128 digest) { return to_hex(digest.high) + to_hex(digest.low); }

std::optional<uint64_t> hex64_from(std::string_view text) {
    uint64_t value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value, 16);
    // Upper case is refused: one digest has one spelling, so every flipped bit of it shows.
    if (to_hex(value) != text) return std::nullopt;
    return value;
}

std::optional<Digest128> hex128_from(std::string_view text) {
    if (text.size() != 32) return std::nullopt;
    const auto high = hex64_from(text.substr(0, 16)), low = hex64_from(text.substr(16));
    if (!high || !low) return std::nullopt;
    return Digest128{*high, *low};
}

namespace {

constexpr size_t kDigits = 32;
constexpr std::string_view kBetween = "  ";  // of digest and name

Digest128 digest_of(FileSystem& file_system, const std::string& path) {
    const File file = File::open(file_system, path);
    const int64_t size = file.size();
    std::vector<std::byte> chunk(to_size(std::min(size, kChunkBytes)));
    Hasher128 whole;
    for (int64_t offset = 0; offset < size; offset += kChunkBytes) {
        const auto part = std::span(chunk).first(to_size(std::min(kChunkBytes, size - offset)));
        file.read_all(part, offset);
        whole.update(part);
    }
    return whole.digest();
}

}  // namespace

void write_sums(FileSystem& file_system, const std::string& directory, const std::vector<std::string>& names) {
    std::string text;
    for (const std::string& name : names)
        text += concat(digest_of(file_system, join(directory, name)), kBetween, name, '\n');
    write_file_atomically(file_system, directory, {.name = std::string(kSumsName), .head = text});
}

void verify_sums(FileSystem& file_system, const std::string& directory) {
    constexpr int64_t kMaxBytes = 64 << 20;
    const std::string list = join(directory, kSumsName);
    if (file_system.kind(list) == FileKind::none) return;
    std::istringstream lines(read_text(File::open(file_system, list), kMaxBytes));
    int64_t number = 1;
    for (std::string line; std::getline(lines, line); ++number) {
        const auto wanted = hex128_from(std::string_view(line).substr(0, kDigits));
        const std::string_view rest = std::string_view(line).substr(std::min(line.size(), kDigits));
        const std::string name(rest.substr(std::min(rest.size(), kBetween.size())));
        check<DataError>(wanted && rest.starts_with(kBetween) && is_plain_file_name(name), list, ':', number,
                         ": required: 32 hexadecimal digits, two spaces, the name of a file; the list is damaged");
        const std::string path = join(directory, name);
        check<DataError>(file_system.kind(path) != FileKind::none, path, " is missing; ", list, ':', number,
                         " lists it: put it back, or remove that line to do without");
        const Digest128 found = digest_of(file_system, path);
        check<DataError>(found == *wanted, path, ": its digest is ", found, ", ", list, ':', number, " says ", *wanted,
                         ": the file is damaged, or was changed by hand; make it again, or remove this line of the "
                         "list to use the file as it is");
    }
}

}  // namespace tutti::checkpoint
