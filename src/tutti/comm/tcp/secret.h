// comm/tcp/secret.h: the proof that a process knows the secret of its job: a keyed hash (BLAKE2b of libsodium) of
// nonces of both ends. The secret itself is never sent. What follows the proof is neither encrypted nor authenticated
// (SECURITY.md).
#pragma once

#include <array>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "tutti/comm/launcher.h"

namespace tutti::comm::tcp {

using Key = std::array<unsigned char, 32>;
using Proof = std::array<unsigned char, 32>;
using Nonce = std::array<unsigned char, 32>;  // a random number, used once

Nonce fresh_nonce();
std::string fresh_hex();  // a nonce as 64 hexadecimal digits

// The keyed hash of `parts`, which may have any bytes. `label` names the purpose and the direction, for which alone the
// proof is valid.
Proof prove(const Key& key, std::string_view label, std::initializer_list<std::string_view> parts);
// In constant time for texts of equal length.
bool is_same(const Proof& a, const Proof& b);
bool is_same(std::string_view a, std::string_view b);

template <class T>
std::string_view bytes_of(const T& object) {
    return {reinterpret_cast<const char*>(&object), sizeof object};
}

// The secret of a job on several hosts.
class Secret {
  public:
    Secret() = default;  // no secret: the key is zero
    // `setting`: comm.secret, the path of a file, "none" or "auto". auto: TUTTI_SECRET, the secret itself or "none";
    // else the file that TUTTI_SECRET_FILE names; else the file kSecretFile in `run_directory`, which rank 0 makes.
    // UsageError if `run_directory` is "" and nothing else is given.
    Secret(const std::string& setting, const std::string& run_directory, const Environment& environment);

    // Creates the file in the run directory, readable by this user only, unless it exists.
    void make() const;
    // nullopt while that file does not exist, with the reason in `why`. UsageError for another file that cannot be
    // read, a file that every user can read, and a secret of fewer than 16 bytes.
    std::optional<Key> key(std::string& why) const;
    std::string origin() const;  // for error messages: "TUTTI_SECRET", "the file runs/a/comm.secret"

  private:
    std::string text_, file_;
    bool is_of_run_ = false;
};
inline constexpr const char* kSecretFile = "comm.secret";

}  // namespace tutti::comm::tcp
