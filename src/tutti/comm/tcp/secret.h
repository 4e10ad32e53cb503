// comm/tcp/secret.h: the proof that a process belongs to a job: a keyed hash (BLAKE2b of libsodium) over fresh random
// numbers of both ends, never the secret itself. What is proved: this end knows the secret of the job, now. Nothing is
// encrypted, and changes of packets after the proof are not detected (SECURITY.md).
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
using Nonce = std::array<unsigned char, 32>;  // used once

Nonce fresh_nonce();
std::string fresh_hex();  // a nonce in 64 digits

// `label` names what is proved and the direction, so that a proof is valid for nothing else. Parts of any bytes.
Proof prove(const Key& key, std::string_view label, std::initializer_list<std::string_view> parts);
// In constant time, for texts of one length.
bool is_same(const Proof& a, const Proof& b);
bool is_same(std::string_view a, std::string_view b);

template <class T>
std::string_view bytes_of(const T& object) {
    return {reinterpret_cast<const char*>(&object), sizeof object};
}

// Where the ranks of a job on several hosts find its secret.
class Secret {
  public:
    Secret() = default;  // none: the key is zero
    // `setting`: the path of a file, none or auto. auto: TUTTI_SECRET, the secret itself, or "none"; else
    // TUTTI_SECRET_FILE, a path; else the file kSecretFile of `run_directory`, which rank 0 makes. UsageError where
    // `run_directory` is "" and nothing else is given.
    Secret(const std::string& setting, const std::string& run_directory, const Environment& environment);

    // Creates the file in the run directory, readable by this user only. An existing file, of another rank or an
    // earlier start, is used: processes of this user may join.
    void make() const;
    // Nothing while the file is not there yet, with the reason in `why`. UsageError for a secret under 16 bytes, and
    // for a file that every user can read.
    std::optional<Key> key(std::string& why) const;
    std::string origin() const;  // "TUTTI_SECRET", "the file runs/a/comm.secret": for messages

  private:
    std::string text_, file_;
    bool is_of_run_ = false;
};
inline constexpr const char* kSecretFile = "comm.secret";

}  // namespace tutti::comm::tcp
