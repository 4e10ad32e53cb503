// What listens at the ports of a job meets others than its ranks: port scanners, hosts that are gone without a word.
// The other end is played by the test, which speaks the protocol itself.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/comm/processes/process_world.h"
#include "tutti/comm/tcp/tcp_wire.h"

namespace tutti::comm::tcp {
namespace {

using namespace std::chrono_literals;

Clock::time_point soon() { return Clock::now() + 30s; }

// Of 16 ports from a free one on the loopback.
Meeting free_meeting() {
    return {.host = "127.0.0.1", .port = port_of(listen_on(true, 0)), .ports = 16, .job = "test", .origin = "the test"};
}

Socket connected(int port) {
    std::string why;
    Socket socket = connect_to("127.0.0.1", port, soon(), why);
    if (!socket.open()) throw Error(why);
    return socket;
}

bool write(const Socket& socket, const void* data, size_t bytes) {
    return ::send(socket.fd(), data, bytes, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes);
}

bool is_closed_by_the_other_end(const Socket& socket) {
    char byte = 0;
    return readable(socket, soon()) && recv(socket.fd(), &byte, 1, 0) <= 0;
}

// A rank that the test plays; it receives messages at `port`.
class PlayedRank {
  public:
    PlayedRank(const Meeting& meeting, int rank, int size, int port = 0) {
        Contact contact;
        kMagic.copy(contact.magic.data(), contact.magic.size());
        meeting.job.copy(contact.job.data(), contact.job.size());
        concat("host of ", rank).copy(contact.memory_space.data(), contact.memory_space.size());
        contact.rank = rank;
        contact.size = size;
        contact.port = port;
        std::string why;
        for (const auto until = soon(); Clock::now() < until; std::this_thread::sleep_for(10ms)) {
            control_ = connect_to(meeting.host, meeting.port, until, why);
            if (!control_.open()) continue;
            send_frame(control_, Frame::Type::join, {reinterpret_cast<const char*>(&contact), sizeof contact});
            if (frame().type == Frame::Type::welcome) return;
        }
        throw Error("not welcome");
    }
    // The secret, then the contacts of all ranks.
    std::string table() { return frame().body; }
    Frame frame() {
        do {  // a frame may have come with the one before
            if (auto frame = reader_.read(control_)) return *frame;
        } while (!reader_.closed() && readable(control_, soon()));
        return {.type = Frame::Type::refusal, .body = "closed"};
    }
    void bye() const { send_frame(control_, Frame::Type::bye, ""); }

  private:
    Socket control_;
    FrameReader reader_;
};

// Scanners hold more connections than the hub grants them, send no word, an endless frame, or the end of the job.
TEST(Strangers, NeitherStopNorEnterTheMeeting) {
    const Meeting meeting = free_meeting();
    constexpr int kSize = 2;
    constexpr double kTimeout = 8;  // 2 s for a stranger
    Hub hub(meeting, kSize, kTimeout);
    std::vector<Socket> strangers;
    strangers.push_back(connected(meeting.port));
    send_frame(strangers.back(), Frame::Type::abort, "stop");
    strangers.push_back(connected(meeting.port));
    const uint32_t length = 1 << 20;
    write(strangers.back(), &length, sizeof length);
    for (const auto most = StrangerLimits::of(kSize, kTimeout).most; std::ssize(strangers) < most + 2;)
        strangers.push_back(connected(meeting.port));
    PlayedRank first(meeting, 0, kSize), second(meeting, 1, kSize);
    for (PlayedRank* rank : {&first, &second}) EXPECT_EQ(rank->table().size(), sizeof(uint64_t) + 2 * sizeof(Contact));
    for (size_t i = 0; i < strangers.size(); ++i) EXPECT_TRUE(is_closed_by_the_other_end(strangers[i])) << i;
    std::string why;
    EXPECT_FALSE(connect_to("127.0.0.1", meeting.port, soon(), why).open())
        << "the table is given, and the hub listens";
    first.bye();
    second.bye();
    hub.end();
}

// The head of a message, as TcpWire sends it.
struct Head {
    enum Kind : uint32_t { hello, data };
    Kind kind = hello;
    int32_t tag = 0;
    int64_t bytes = 0;
    uint64_t number = 0;
};

TEST(Strangers, AreClosedByARankThatWaitsForMessages) {
    const Meeting meeting = free_meeting();
    constexpr double kTimeout = 4;  // 1 s for a stranger
    std::string received(5, ' ');
    std::thread rank([&] {
        TcpWire wire({.launcher = Launcher::environment, .rank = 0, .size = 2}, meeting, kTimeout, {});
        const auto request = wire.receive(received.data(), 5, 1, 7);
        for (const auto until = soon(); !wire.done(request) && Clock::now() < until;) std::this_thread::sleep_for(1ms);
        wire.finalize();
    });
    PlayedRank peer(meeting, 1, 2);
    const std::string table = peer.table();
    uint64_t secret = 0;
    Contact zero;
    ASSERT_EQ(table.size(), sizeof secret + 2 * sizeof zero);
    std::memcpy(&secret, table.data(), sizeof secret);
    std::memcpy(&zero, table.data() + sizeof secret, sizeof zero);
    std::vector<Socket> strangers;
    for (int i = 0; i < 25; ++i) strangers.push_back(connected(zero.port));
    const Head wrong{.tag = 1, .number = secret + 1}, early{.kind = Head::data, .tag = 7, .bytes = int64_t{1} << 40};
    write(strangers[0], &wrong, sizeof wrong);
    write(strangers[1], &early, sizeof early);
    write(strangers[2], &wrong, 5);
    for (size_t i = 0; i < strangers.size(); ++i) EXPECT_TRUE(is_closed_by_the_other_end(strangers[i])) << i;

    const Socket link = connected(zero.port);
    const Head hello{.tag = 1, .number = secret}, head{.kind = Head::data, .tag = 7, .bytes = 5};
    write(link, &hello, sizeof hello);
    write(link, &head, sizeof head);
    write(link, "hello", 5);
    peer.bye();
    rank.join();
    EXPECT_EQ(received, "hello");
}

// A host that answers no connection: its queue of waiting connections is full, and the system drops further ones. Rank
// 1 fails while rank 0 connects to that host, and rank 0 must hear of the failure long before the connection's
// time-out.
TEST(GoneHost, DoesNotHideAnotherRanksFailure) {
    const Meeting meeting = free_meeting();
    const Socket silent = listen_on(true, 0);
    ASSERT_EQ(listen(silent.fd(), 0), 0);
    std::vector<Socket> queue;
    std::string why;
    bool is_full = false;
    while (!is_full && queue.size() < 16) {
        queue.push_back(connect_to("127.0.0.1", port_of(silent), Clock::now() + 200ms, why));
        is_full = !queue.back().open();
    }
    ASSERT_TRUE(is_full) << "this system accepts connections beyond the queue";

    std::atomic<bool> connecting{false};
    const auto run = [&](int rank, const std::function<void(World&)>& body) {
        constexpr double kTimeout = 20;
        const Launch launch{.launcher = Launcher::environment, .rank = rank, .size = 3};
        const std::vector<int> hosts = {0, 1, 2};
        try {
            processes::run_processes("tcp", [&] { return std::make_unique<TcpWire>(launch, meeting, kTimeout, hosts); },
                                     {.timeout_s = kTimeout}, body, {.hosts = hosts});
        } catch (const std::exception& error) {
            return std::string(error.what());
        }
        return std::string("no error");
    };
    std::string of_0, of_1;
    std::thread rank_0([&] {
        of_0 = run(0, [&](World& world) {
            const auto with_2 = world.group("pair", {0, 2});
            connecting = true;
            with_2->sum(1);
        });
    });
    std::thread rank_1([&] {
        of_1 = run(1, [&](World&) {
            while (!connecting) std::this_thread::sleep_for(1ms);
            std::this_thread::sleep_for(500ms);
            throw DataError("the disk of rank 1 is gone");
        });
    });
    PlayedRank rank_2(meeting, 2, 3, port_of(silent));
    rank_0.join();
    rank_1.join();
    EXPECT_EQ(of_0, "rank 1 failed: the disk of rank 1 is gone");
    EXPECT_EQ(of_1, "the disk of rank 1 is gone");
}

// Without any failure elsewhere the connection's own time-out names the host, before that of the operation.
TEST(GoneHost, IsNamed) {
    const Meeting meeting = free_meeting();
    const Socket silent = listen_on(true, 0);
    ASSERT_EQ(listen(silent.fd(), 0), 0);
    std::vector<Socket> queue;
    std::string why, error;
    while (queue.size() < 16 && (queue.empty() || queue.back().open()))
        queue.push_back(connect_to("127.0.0.1", port_of(silent), Clock::now() + 200ms, why));
    std::thread rank([&] {
        TcpWire wire({.launcher = Launcher::environment, .rank = 0, .size = 2}, meeting, 3, {});
        const auto request = wire.send("x", 1, 1, 7);
        try {
            for (const auto until = soon(); !wire.done(request) && Clock::now() < until;)
                std::this_thread::sleep_for(1ms);
        } catch (const Error& e) {
            error = e.what();
        }
        wire.finalize();
    });
    PlayedRank peer(meeting, 1, 2, port_of(silent));
    peer.table();
    peer.bye();
    rank.join();
    EXPECT_NE(error.find("cannot connect to rank 1 on host"), std::string::npos) << error;
    EXPECT_NE(error.find("no answer within 2.7 s (0.9 of comm.timeout_s): its host is gone"), std::string::npos)
        << error;
}

}  // namespace
}  // namespace tutti::comm::tcp
