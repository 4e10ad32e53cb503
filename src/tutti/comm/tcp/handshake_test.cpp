// Only a caller that knows the secret and the label is accepted; a sealed message arrives unchanged or not at all.
#include "tutti/comm/tcp/handshake.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <cstring>
#include <future>
#include <random>
#include <thread>

#include "tutti/base/error.h"

namespace tutti::comm::tcp {
namespace {

using namespace std::chrono_literals;

Key some_key(unsigned char fill) {
    Key key{};
    key.fill(fill);
    return key;
}

struct Met {
    std::optional<AuthenticatedSession> listener, caller;
    std::string error;  // of the caller
};

Met meet(const Key& of_listener, const std::string& label_of_listener, const Key& of_caller,
         const std::string& label_of_caller, int number) {
    Listener listener = handshake_listener(listen_on(true, 0), {.most = 8, .time = 1h});
    const int port = port_of(listener.socket());
    Met met;
    auto caller = std::async(std::launch::async, [&] {
        try {
            std::string why;
            met.caller = start_handshake(connect_to("127.0.0.1", port, Clock::now() + 30s, why), of_caller,
                                         label_of_caller, number, "the listener", 30s);
        } catch (const DataError& error) {
            met.error = error.what();
        }
    });
    for (bool seen = false; !seen; std::this_thread::sleep_for(1ms))
        for (Listener::Connection& connection : listener.accept()) {
            met.listener = accept_handshake(std::move(connection), of_listener, label_of_listener);
            seen = true;
        }
    caller.wait();
    return met;
}

TEST(Handshake, AcceptsACallerThatKnowsTheSecretAndTheLabel) {
    const Met met = meet(some_key(1), "subject", some_key(1), "subject", 300);
    ASSERT_TRUE(met.listener && met.caller) << met.error;
    EXPECT_EQ(met.listener->number, 300);
    EXPECT_EQ(met.listener->key, met.caller->key);
    EXPECT_NE(met.listener->key, some_key(1));
    const Met again = meet(some_key(1), "subject", some_key(1), "subject", 300);
    ASSERT_TRUE(again.listener.has_value());
    EXPECT_NE(met.listener->key, again.listener->key);  // differs between connections
    for (const auto& [key, label] : {std::pair(some_key(2), "subject"), std::pair(some_key(1), "other")}) {
        const Met refused = meet(some_key(1), "subject", key, label, 0);
        EXPECT_FALSE(refused.listener || refused.caller);
        EXPECT_EQ(refused.error, "the listener has closed the connection");
    }
}

// Other hosts cannot connect to a listener at the loopback address.
TEST(Sockets, ListenAtTheLoopbackAddressOnly) {
    for (const bool loopback : {true, false}) {
        const Socket listener = listen_on(loopback, 0);
        sockaddr_storage any{};
        socklen_t size = sizeof any;
        ASSERT_EQ(getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&any), &size), 0);
        sockaddr_in address{};
        std::memcpy(&address, &any, sizeof address);
        EXPECT_EQ(any.ss_family == AF_INET && address.sin_addr.s_addr == htonl(INADDR_LOOPBACK), loopback);
    }
}

// A listener that accepts every caller, as an attacker would.
TEST(Handshake, RefusesAListenerWithoutTheSecret) {
    const Socket listener = listen_on(true, 0);
    auto caller = std::async(std::launch::async, [&]() -> std::string {
        try {
            std::string why;
            start_handshake(connect_to("127.0.0.1", port_of(listener), Clock::now() + 30s, why), some_key(1), "subject",
                            0, "the listener", 30s);
        } catch (const DataError& error) {
            return error.what();
        }
        return "";
    });
    Socket socket;
    while (!socket.open()) socket = accept_from(listener);
    const Nonce challenge = fresh_nonce();
    send_frame(socket, Frame::Type::challenge, bytes_of(challenge));
    send_frame(socket, Frame::Type::welcome, bytes_of(Proof{}));
    EXPECT_EQ(caller.get(), "the listener does not know the secret of this job");
}

TEST(Cipher, OpensOnlyTheNextSealedMessage) {
    const AuthenticatedSession session{.socket = {}, .reader = {}, .number = 0, .key = some_key(7)};
    std::mt19937 random(69);
    for (int trial = 0; trial < 200; ++trial) {
        Cipher out(session, "there"), in(session, "there"), back(session, "back");
        std::string message(random() % 3000, '\0');
        for (char& c : message) c = static_cast<char>(random());
        const std::string first = out.seal(message), second = out.seal(message);
        EXPECT_NE(first, second);
        const std::string beginning = message.substr(0, 16);
        EXPECT_TRUE(beginning.size() < 16 || first.find(beginning) == std::string::npos);
        EXPECT_FALSE(in.open(second));  // out of order
        std::string changed = first;
        changed[random() % changed.size()] ^= static_cast<char>(1 << random() % 8);
        EXPECT_FALSE(in.open(changed));
        EXPECT_FALSE(in.open(std::string_view(first).substr(0, random() % first.size())));
        EXPECT_FALSE(back.open(first));  // reflected
        EXPECT_EQ(in.open(first), message);
        EXPECT_FALSE(in.open(first));  // repeated
        EXPECT_EQ(in.open(second), message);
    }
}

}  // namespace
}  // namespace tutti::comm::tcp
