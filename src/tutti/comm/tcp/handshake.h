// comm/tcp/handshake.h: how a caller and a listener prove to each other that both know a secret:
//   listener -> caller   challenge   a nonce
//   caller -> listener   join        a nonce, the caller's number, a proof of both and the challenge
//   listener -> caller   welcome     a proof of the same
// and a cipher for what both send afterwards (secret.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tutti/comm/tcp/listener.h"
#include "tutti/comm/tcp/secret.h"
#include "tutti/comm/tcp/socket.h"

namespace tutti::comm::tcp {

// A connection whose two ends know the secret.
struct AuthenticatedSession {
    Socket socket;
    FrameReader reader;  // of the bytes after the handshake
    int number = 0;      // of the caller, as it claims
    Key key{};           // of this session only
};

// A listener that sends challenges and reads joins.
Listener handshake_listener(Socket listener, const PendingLimits& limits);
// The listener's side; does not block. nullopt if the caller does not know the secret or has disconnected. `label`: the
// subject of the session; a proof is valid for one label only.
std::optional<AuthenticatedSession> accept_handshake(Listener::Connection connection, const Key& key,
                                                     std::string_view label);
// The caller's side, over a new connection; waits for at most `limit`. DataError, with the `name` of the listener, if
// the listener does not know the secret, or the two differ in the label.
AuthenticatedSession start_handshake(Socket socket, const Key& key, std::string_view label, int number,
                                     const std::string& name, Clock::duration limit);

// Encrypts or decrypts one direction of a session. A message that was changed, repeated, dropped or reordered is
// detected (ChaCha20-Poly1305, RFC 8439; the nonce counts the messages).
class Cipher {
  public:
    // `direction`: a name that both ends use.
    Cipher(const AuthenticatedSession& session, std::string_view direction);
    std::string seal(std::string_view message);
    std::optional<std::string> open(std::string_view sealed);  // nullopt: not the next message

  private:
    Key key_;
    uint64_t count_ = 0;
};

}  // namespace tutti::comm::tcp
