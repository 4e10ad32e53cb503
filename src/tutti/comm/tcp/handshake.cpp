#include "tutti/comm/tcp/handshake.h"

#include <sodium/crypto_aead_chacha20poly1305.h>

#include <array>
#include <cstring>

#include "tutti/base/error.h"

namespace tutti::comm::tcp {

namespace {

constexpr size_t kLongestFrameOfHandshake = 4096;  // of a peer that has proved nothing

struct CallerHello {
    Nonce nonce{};
    Proof proof{};
    int32_t number = 0, unused = 0;
};

Proof proof_of(const Key& key, std::string_view label, std::string_view side, const Nonce& challenge,
               const CallerHello& caller) {
    return prove(key, concat(label, ' ', side), {bytes_of(challenge), bytes_of(caller.nonce), bytes_of(caller.number)});
}

AuthenticatedSession session_of(Socket socket, FrameReader reader, const Key& key, std::string_view label,
                                const Nonce& challenge, const CallerHello& caller) {
    return {std::move(socket), std::move(reader), caller.number, proof_of(key, label, "session", challenge, caller)};
}

std::array<unsigned char, crypto_aead_chacha20poly1305_ietf_NPUBBYTES> nonce_of(uint64_t count) {
    std::array<unsigned char, crypto_aead_chacha20poly1305_ietf_NPUBBYTES> nonce{};
    std::memcpy(nonce.data(), &count, sizeof count);
    return nonce;
}

const unsigned char* bytes(std::string_view text) { return reinterpret_cast<const unsigned char*>(text.data()); }
unsigned char* bytes(std::string& text) { return reinterpret_cast<unsigned char*>(text.data()); }

}  // namespace

Listener handshake_listener(Socket listener, const PendingLimits& limits) {
    const std::string join = to_bytes(Frame::Type::join, bytes_of(CallerHello{}));
    return {std::move(listener),
            limits,
            {join.substr(0, join.size() - sizeof(CallerHello)), join.size()},
            [](const Nonce& challenge) { return to_bytes(Frame::Type::challenge, bytes_of(challenge)); }};
}

std::optional<AuthenticatedSession> accept_handshake(Listener::Connection connection, const Key& key,
                                                     std::string_view label) {
    CallerHello caller;
    std::memcpy(&caller, connection.first.data() + connection.first.size() - sizeof caller, sizeof caller);
    if (!is_same(caller.proof, proof_of(key, label, "client", connection.challenge, caller))) return std::nullopt;
    const Proof own = proof_of(key, label, "server", connection.challenge, caller);
    if (!send_frame(connection.socket, Frame::Type::welcome, bytes_of(own))) return std::nullopt;
    return session_of(std::move(connection.socket), {}, key, label, connection.challenge, caller);
}

AuthenticatedSession start_handshake(Socket socket, const Key& key, std::string_view label, int number,
                                     const std::string& name, Clock::duration limit) {
    FrameReader reader;
    const auto until = Clock::now() + limit;
    const auto next = [&] {
        for (;;) {
            if (auto frame = reader.read(socket, kLongestFrameOfHandshake)) return *frame;
            check<DataError>(!reader.closed(), name, " has closed the connection");
            check<DataError>(readable(socket, until), name, " has not answered for ",
                             std::chrono::duration<double>(limit).count(), " s");
        }
    };
    const Frame challenge = next();
    Nonce theirs{};
    check<DataError>(challenge.type == Frame::Type::challenge && challenge.body.size() == theirs.size(), name,
                     " is another program, or another version of this one");
    std::memcpy(theirs.data(), challenge.body.data(), theirs.size());
    CallerHello own{.nonce = fresh_nonce(), .number = number};
    own.proof = proof_of(key, label, "client", theirs, own);
    check<DataError>(send_frame(socket, Frame::Type::join, bytes_of(own)), name, " has closed the connection");
    const Frame welcome = next();
    check<DataError>(is_same(welcome.body, bytes_of(proof_of(key, label, "server", theirs, own))), name,
                     " does not know the secret of this job");
    return session_of(std::move(socket), std::move(reader), key, label, theirs, own);
}

Cipher::Cipher(const AuthenticatedSession& session, std::string_view direction)
    : key_(prove(session.key, direction, {})) {}

std::string Cipher::seal(std::string_view message) {
    std::string sealed(message.size() + crypto_aead_chacha20poly1305_ietf_ABYTES, '\0');
    crypto_aead_chacha20poly1305_ietf_encrypt(bytes(sealed), nullptr, bytes(message), message.size(), nullptr, 0,
                                              nullptr, nonce_of(count_++).data(), key_.data());
    return sealed;
}

std::optional<std::string> Cipher::open(std::string_view sealed) {
    if (sealed.size() < crypto_aead_chacha20poly1305_ietf_ABYTES) return std::nullopt;
    std::string message(sealed.size() - crypto_aead_chacha20poly1305_ietf_ABYTES, '\0');
    if (crypto_aead_chacha20poly1305_ietf_decrypt(bytes(message), nullptr, nullptr, bytes(sealed), sealed.size(),
                                                  nullptr, 0, nonce_of(count_).data(), key_.data()) != 0)
        return std::nullopt;
    ++count_;
    return message;
}

}  // namespace tutti::comm::tcp
