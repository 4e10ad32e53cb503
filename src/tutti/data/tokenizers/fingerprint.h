// data/tokenizers/fingerprint.h: 64-bit digests: of a tokenizer, made of its parts one by one, and of a text. Together
// they are the key of encoded text (text_tokens.h).
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace tutti::data {

class Fingerprint {
  public:
    Fingerprint& add(std::string_view part);  // its length goes in too: "ab" + "c" is not "a" + "bc"
    Fingerprint& add(const char* part) { return add(std::string_view(part)); }
    Fingerprint& add(std::integral auto number) { return add_number(static_cast<uint64_t>(number)); }
    uint64_t value() const;

  private:
    Fingerprint& add_number(uint64_t number);
    std::string bytes_;
};

uint64_t digest_of(std::string_view bytes);  // XXH3
std::string to_hex(uint64_t value);          // 16 digits

}  // namespace tutti::data
