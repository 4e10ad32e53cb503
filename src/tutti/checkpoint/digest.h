// checkpoint/digest.h: XXH3, the digest of checkpoint chunks and files, and lists of digests. A digest finds accidents
// (bit flips, torn writes, swapped files), not forgery.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/digits.h"
#include "tutti/checkpoint/file_system.h"

namespace tutti::checkpoint {

struct Digest128 {
    uint64_t high = 0, low = 0;
    bool operator==(const Digest128&) const = default;
};

uint64_t xxh3_64(std::span<const std::byte> bytes);
Digest128 xxh3_128(std::span<const std::byte> bytes);

// XXH3-128 of bytes that arrive in pieces.
class Hasher128 {
  public:
    Hasher128();
    ~Hasher128();
    Hasher128(Hasher128&&) noexcept;
    Hasher128& operator=(Hasher128&&) noexcept;
    void update(std::span<const std::byte> bytes);
    Digest128 digest() const;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

using tutti::to_hex;                   // of 64 bits
std::string to_hex(Digest128 digest);  // 32, as `xxhsum -H2` prints it
std::optional<uint64_t> hex64_from(std::string_view text);
std::optional<Digest128> hex128_from(std::string_view text);
inline std::ostream& operator<<(std::ostream& out, Digest128 digest) { return out << to_hex(digest); }

// A list of digests beside files that have no place for one: the files of an export, the tokenizer of a run.
// `xxh128sum -c XXH128SUMS` checks the list too.
constexpr std::string_view kSumsName = "XXH128SUMS";

// Writes the list for these files of `directory`, with the digests of the files on disk. Replaces an older list.
// DataError when a file cannot be read.
void write_sums(FileSystem& file_system, const std::string& directory, const std::vector<std::string>& names);

// DataError when a file of the list is missing or has another digest. A directory without a list passes: another
// program wrote it.
void verify_sums(FileSystem& file_system, const std::string& directory);

}  // namespace tutti::checkpoint
