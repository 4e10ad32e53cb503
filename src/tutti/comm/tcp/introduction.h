// comm/tcp/introduction.h: how a caller and a listening process show each other that both know a secret:
//   listener -> caller   challenge   a fresh number
//   caller -> listener   join        a fresh number, the caller's own number, a proof of all three
//   listener -> caller   welcome     a proof of the same
// and the seal of what both may then send so that the network can neither read nor change it (secret.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tutti/comm/tcp/door.h"
#include "tutti/comm/tcp/secret.h"
#include "tutti/comm/tcp/socket.h"

namespace tutti::comm::tcp {

// A connection whose two ends know the secret.
struct Session {
    Socket socket;
    FrameReader reader;  // what has come behind the introduction
    int number = 0;      // of the caller, by its own word
    Key key{};           // of this connection alone
};

// Where callers introduce themselves.
Door reception(Socket listener, const StrangerLimits& limits);
// Nothing for a visitor that does not know the secret, or is gone. `label`: what the two talk about; no proof serves
// for another label.
std::optional<Session> admit(Door::Visitor visitor, const Key& key, std::string_view label);
// The caller's side, over a fresh connection; waits for `limit` at most. DataError, with `name` of the other end, when
// it does not know the secret or label.
Session introduce(Socket socket, const Key& key, std::string_view label, int number, const std::string& name,
                  Clock::duration limit);

// One direction of a session: messages are encrypted, and one that was changed, repeated, left out or moved is noticed
// (ChaCha20-Poly1305, RFC 8439; the nonce counts the messages).
class Seal {
  public:
    // Both ends name the direction alike.
    Seal(const Session& session, std::string_view direction);
    std::string close(std::string_view message);
    std::optional<std::string> open(std::string_view sealed);  // nothing: this is not the next message

  private:
    Key key_;
    uint64_t count_ = 0;
};

}  // namespace tutti::comm::tcp
