#include "tutti/comm/tcp/listener.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <thread>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"

namespace tutti::comm::tcp {
namespace {

using namespace std::chrono_literals;

Clock::time_point deadline() { return Clock::now() + 30s; }

Listener listener_of(ptrdiff_t most, Clock::duration time) {
    Socket listener = listen_on(true, 0);
    return {std::move(listener), {.most = most, .time = time}, {.head = "hi ", .bytes = 6}, [](const Nonce&) {
                return std::string("who?");
            }};
}

Socket connected(const Listener& listener) {
    std::string why;
    Socket socket = connect_to("127.0.0.1", port_of(listener.socket()), deadline(), why);
    if (!socket.open()) throw Error(why);
    return socket;
}

void say(const Socket& socket, std::string_view text) { ASSERT_EQ(send_some(socket, text), text.size()); }

// What has arrived so far, and whether the peer has closed the connection.
ReceivedBytes heard(const Socket& socket) { return receive_some(socket, 100); }

template <class Condition>
bool accept_until(Listener& listener, std::vector<Listener::Connection>& connections, const Condition& condition) {
    for (const auto until = deadline(); !condition(); std::this_thread::sleep_for(1ms)) {
        if (Clock::now() > until) return false;
        for (Listener::Connection& connection : listener.accept()) connections.push_back(std::move(connection));
    }
    return true;
}

TEST(Listener, ReturnsConnectionsWithACompleteFirstMessageAndClosesOthers) {
    Listener listener = listener_of(8, 1h);
    const Socket rank = connected(listener), other = connected(listener), endless = connected(listener),
                 early = connected(listener);
    std::vector<Listener::Connection> connections;
    say(rank, "h");
    say(other, "GET /");
    say(endless, "hi 123456789");
    say(early, "hx");
    ASSERT_TRUE(accept_until(listener, connections, [&] { return heard(other).ended && heard(early).ended; }));
    say(rank, "i abcmore");
    ASSERT_TRUE(accept_until(listener, connections, [&] { return connections.size() == 2; }));
    EXPECT_EQ(connections[0].first, "hi 123");
    EXPECT_EQ(connections[1].first, "hi abc");
    EXPECT_NE(connections[0].challenge, connections[1].challenge);
    EXPECT_EQ(heard(rank).bytes, "who?");
    ASSERT_TRUE(readable(connections[1].socket, deadline()));
    EXPECT_EQ(heard(connections[1].socket).bytes, "more");
    EXPECT_TRUE(listener.accept().empty());
}

TEST(Listener, ClosesTheOldestOfTooManyConnectionsAndLateOnes) {
    constexpr size_t kMost = 3;
    Listener listener = listener_of(kMost, 1h);
    std::vector<Socket> callers;
    std::vector<Listener::Connection> connections;
    const auto greeted = [&] { return heard(callers.back()).bytes == "who?"; };
    for (size_t i = 0; i < kMost; ++i) {
        callers.push_back(connected(listener));
        ASSERT_TRUE(accept_until(listener, connections, greeted));
    }
    for (int i = 0; i < 5; ++i) listener.accept();
    for (const Socket& caller : callers) EXPECT_FALSE(heard(caller).ended) << "as many as may wait";
    callers.push_back(connected(listener));
    ASSERT_TRUE(accept_until(listener, connections, greeted));
    EXPECT_TRUE(heard(callers[0]).ended);
    for (size_t i = 1; i <= kMost; ++i) EXPECT_FALSE(heard(callers[i]).ended) << i;
    EXPECT_FALSE(listener.is_overdue());

    Listener brief = listener_of(kMost, 1ms);
    const Socket silent = connected(brief);
    ASSERT_TRUE(accept_until(brief, connections, [&] { return heard(silent).bytes == "who?"; }));
    ASSERT_TRUE(accept_until(brief, connections, [&] { return heard(silent).ended; }));
    EXPECT_FALSE(brief.is_overdue());
    EXPECT_TRUE(connections.empty());
}

// If no descriptor is left, the oldest pending connection is closed; if none is pending, the listener waits.
TEST(Listener, SurvivesALackOfDescriptors) {
    Listener listener = listener_of(8, 1h);
    std::vector<Listener::Connection> connections;
    const Socket first = connected(listener);
    ASSERT_TRUE(accept_until(listener, connections, [&] { return heard(first).bytes == "who?"; }));
    const Socket second = connected(listener), third = connected(listener);
    rlimit limit{};
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    const rlimit none{.rlim_cur = 0, .rlim_max = limit.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    const bool has_made_room =
        accept_until(listener, connections, [&] { return heard(first).ended && listener.is_overdue(); });
    setrlimit(RLIMIT_NOFILE, &limit);
    EXPECT_TRUE(has_made_room);
    EXPECT_TRUE(heard(second).bytes.empty());
    EXPECT_TRUE(accept_until(listener, connections, [&] { return heard(second).bytes == "who?"; }));
    EXPECT_TRUE(accept_until(listener, connections, [&] { return heard(third).bytes == "who?"; }));
    EXPECT_FALSE(listener.is_overdue());
}

TEST(Listener, IsClosedByDefault) {
    Listener listener;
    EXPECT_EQ(listener.fd(), -1);
    EXPECT_FALSE(listener.is_overdue());
    EXPECT_TRUE(listener.accept().empty());
}

}  // namespace
}  // namespace tutti::comm::tcp
