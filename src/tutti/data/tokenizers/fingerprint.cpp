#include "tutti/data/tokenizers/fingerprint.h"

#include <xxhash.h>

namespace tutti::data {

Fingerprint& Fingerprint::add_number(uint64_t number) {
    bytes_.append(reinterpret_cast<const char*>(&number), sizeof number);
    return *this;
}

Fingerprint& Fingerprint::add(std::string_view part) {
    add_number(part.size());
    bytes_ += part;
    return *this;
}

uint64_t Fingerprint::value() const { return digest_of(bytes_); }

uint64_t digest_of(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::string to_hex(uint64_t value) {
    std::string text;
    for (int shift = 60; shift >= 0; shift -= 4) text += "0123456789abcdef"[value >> shift & 15];
    return text;
}

}  // namespace tutti::data
