#include "tutti/comm/tcp/door.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <array>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"

namespace tutti::comm::tcp {
namespace {

using namespace std::chrono_literals;

Clock::time_point soon() { return Clock::now() + 30s; }

Door door_of(ptrdiff_t most, Clock::duration time) {
    Socket listener = listen_on(true, 0);
    return {std::move(listener), {.most = most, .time = time}, {.head = "hi ", .bytes = 6}, [](const Nonce&) {
                return std::string("who?");
            }};
}

Socket connected(const Door& door) {
    std::string why;
    Socket socket = connect_to("127.0.0.1", port_of(door.listener()), soon(), why);
    if (!socket.open()) throw Error(why);
    return socket;
}

void say(const Socket& socket, std::string_view text) { ASSERT_EQ(send_some(socket, text), text.size()); }

// What has come so far, and whether the other end has closed.
Arrived heard(const Socket& socket) { return receive_some(socket, 100); }

template <class Condition>
bool look_until(Door& door, std::vector<Door::Visitor>& visitors, const Condition& condition) {
    for (const auto until = soon(); !condition(); std::this_thread::sleep_for(1ms)) {
        if (Clock::now() > until) return false;
        for (Door::Visitor& visitor : door.look()) visitors.push_back(std::move(visitor));
    }
    return true;
}

TEST(Door, HandsOverWhoCompletesTheFirstMessageAndClosesWhoBeginsOtherwise) {
    Door door = door_of(8, 1h);
    const Socket rank = connected(door), other = connected(door), endless = connected(door), early = connected(door);
    std::vector<Door::Visitor> visitors;
    say(rank, "h");
    say(other, "GET /");
    say(endless, "hi 123456789");
    say(early, "hx");
    ASSERT_TRUE(look_until(door, visitors, [&] { return heard(other).ended && heard(early).ended; }));
    say(rank, "i abcmore");
    ASSERT_TRUE(look_until(door, visitors, [&] { return visitors.size() == 2; }));
    EXPECT_EQ(visitors[0].first, "hi 123");
    EXPECT_EQ(visitors[1].first, "hi abc");
    EXPECT_NE(visitors[0].challenge, visitors[1].challenge);
    EXPECT_EQ(heard(rank).bytes, "who?");
    ASSERT_TRUE(readable(visitors[1].socket, soon()));
    EXPECT_EQ(heard(visitors[1].socket).bytes, "more");
    EXPECT_TRUE(door.look().empty());
}

TEST(Door, ClosesTheOldestOfTooManyAndWhoIsLate) {
    constexpr size_t kMost = 3;
    Door door = door_of(kMost, 1h);
    std::vector<Socket> strangers;
    std::vector<Door::Visitor> visitors;
    const auto greeted = [&] { return heard(strangers.back()).bytes == "who?"; };
    for (size_t i = 0; i < kMost; ++i) {
        strangers.push_back(connected(door));
        ASSERT_TRUE(look_until(door, visitors, greeted));
    }
    for (int i = 0; i < 5; ++i) door.look();
    for (const Socket& stranger : strangers) EXPECT_FALSE(heard(stranger).ended) << "as many as may wait";
    strangers.push_back(connected(door));
    ASSERT_TRUE(look_until(door, visitors, greeted));
    EXPECT_TRUE(heard(strangers[0]).ended);
    for (size_t i = 1; i <= kMost; ++i) EXPECT_FALSE(heard(strangers[i]).ended) << i;
    EXPECT_FALSE(door.is_late());

    Door brief = door_of(kMost, 1ms);
    const Socket silent = connected(brief);
    ASSERT_TRUE(look_until(brief, visitors, [&] { return heard(silent).bytes == "who?"; }));
    ASSERT_TRUE(look_until(brief, visitors, [&] { return heard(silent).ended; }));
    EXPECT_FALSE(brief.is_late());
    EXPECT_TRUE(visitors.empty());
}

// Without a descriptor to accept with, the oldest stranger makes room; without strangers the door waits in silence.
TEST(Door, GoesOnWithoutDescriptors) {
    Door door = door_of(8, 1h);
    std::vector<Door::Visitor> visitors;
    const Socket first = connected(door);
    ASSERT_TRUE(look_until(door, visitors, [&] { return heard(first).bytes == "who?"; }));
    const Socket second = connected(door), third = connected(door);
    rlimit limit{};
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    const rlimit none{.rlim_cur = 0, .rlim_max = limit.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    const bool has_made_room = look_until(door, visitors, [&] { return heard(first).ended && door.is_late(); });
    setrlimit(RLIMIT_NOFILE, &limit);
    EXPECT_TRUE(has_made_room);
    EXPECT_TRUE(heard(second).bytes.empty());
    EXPECT_TRUE(look_until(door, visitors, [&] { return heard(second).bytes == "who?"; }));
    EXPECT_TRUE(look_until(door, visitors, [&] { return heard(third).bytes == "who?"; }));
    EXPECT_FALSE(door.is_late());
}

TEST(Door, OfNobodyIsClosed) {
    Door door;
    EXPECT_EQ(door.fd(), -1);
    EXPECT_FALSE(door.is_late());
    EXPECT_TRUE(door.look().empty());
}

}  // namespace
}  // namespace tutti::comm::tcp
