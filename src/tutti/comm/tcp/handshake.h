// comm/tcp/handshake.h: how a caller and a listening process prove to each other that both know a secret:
//   listener -> caller   challenge   a fresh number
//   caller -> listener   join        a fresh number, the caller's own number, a proof of all three
//   listener -> caller   welcome     a proof of the same
// and the cipher of what both may send afterwards, which the network can neither read nor change (secret.h).
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
struct Session {
    Socket socket;
    FrameReader reader;  // what has come behind the handshake
    int number = 0;      // of the caller, as it claims
    Key key{};           // of this connection only
};

// Greets with challenges and reads joins.
Listener handshake_listener(Socket listener, const PendingLimits& limits);
// The listener's side; does not block. Nothing for a caller that does not know the secret, or has disconnected.
// `label`: the subject of the session; a proof is valid for one label.
std::optional<Session> accept_handshake(Listener::Connection connection, const Key& key, std::string_view label);
// The caller's side, over a fresh connection; waits for `limit` at most. DataError, with `name` of the other end, when
// it does not know the secret or label.
Session start_handshake(Socket socket, const Key& key, std::string_view label, int number, const std::string& name,
                        Clock::duration limit);

// One direction of a session: messages are encrypted, and one that was changed, repeated, left out or moved is noticed
// (ChaCha20-Poly1305, RFC 8439; the nonce counts the messages).
class Cipher {
  public:
    // Both ends name the direction alike.
    Cipher(const Session& session, std::string_view direction);
    std::string seal(std::string_view message);
    std::optional<std::string> open(std::string_view sealed);  // nothing: this is not the next message

  private:
    Key key_;
    uint64_t count_ = 0;
};

}  // namespace tutti::comm::tcp
