#include "tutti/checkpoint/digest.h"

#include <xxhash.h>

#include <new>

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

std::string to_hex(uint64_t value) {
    std::string text(16, '0');
    for (size_t i = 0; i < 16; ++i) text[i] = "0123456789abcdef"[(value >> (60 - 4 * i)) & 15];
    return text;
}

std::string to_hex(Digest128 digest) { return to_hex(digest.high) + to_hex(digest.low); }

std::optional<uint64_t> hex64_from(std::string_view text) {
    if (text.size() != 16) return std::nullopt;
    uint64_t value = 0;
    for (char c : text) {
        // Upper case is refused: one digest has one spelling, so every flipped bit of it shows.
        if (c >= '0' && c <= '9') {
            value = value * 16 + static_cast<uint64_t>(c - '0');
        } else if (c >= 'a' && c <= 'f') {
            value = value * 16 + static_cast<uint64_t>(c - 'a' + 10);
        } else {
            return std::nullopt;
        }
    }
    return value;
}

std::optional<Digest128> hex128_from(std::string_view text) {
    if (text.size() != 32) return std::nullopt;
    const auto high = hex64_from(text.substr(0, 16)), low = hex64_from(text.substr(16));
    if (!high || !low) return std::nullopt;
    return Digest128{*high, *low};
}

}  // namespace tutti::checkpoint
