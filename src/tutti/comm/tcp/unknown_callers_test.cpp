// Processes that listen at the ports of a job get connections from others than its ranks, such as port scanners, and
// their own connections may reach hosts that are gone. The tests speak the protocol of the other end themselves.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <map>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/base/testing/scratch.h"
#include "tutti/base/to_size.h"
#include "tutti/comm/processes/process_world.h"
#include "tutti/comm/tcp/tcp_wire.h"

namespace tutti::comm::tcp {
namespace {

using namespace std::chrono_literals;

Clock::time_point soon() { return Clock::now() + 30s; }

// 16 ports from a free one on, at the loopback address.
Rendezvous free_rendezvous(const std::string& secret = "a secret of 24 bytes....") {
    const Environment environment = [&](const std::string& name) {
        return name == "TUTTI_SECRET" ? std::optional(secret) : std::nullopt;
    };
    return {.host = "127.0.0.1",
            .port = port_of(listen_on(true, 0)),
            .ports = 16,
            .job = "test",
            .origin = "the test",
            .secret = Secret("auto", "", environment)};
}

Key key_of(const Rendezvous& rendezvous) {
    std::string why;
    return rendezvous.secret.key(why).value();
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

// Ignores what arrives before.
bool is_closed_by_the_other_end(const Socket& socket) {
    std::array<char, 4096> bytes{};
    while (readable(socket, soon()))
        if (recv(socket.fd(), bytes.data(), bytes.size(), 0) <= 0) return true;
    return false;
}

// A rank whose protocol the test speaks; it accepts links at `port`.
class PlayedRank {
  public:
    PlayedRank(const Rendezvous& rendezvous, int rank, int size, int port = 0) : key_(key_of(rendezvous)) {
        Contact contact;
        kMagic.copy(contact.magic.data(), contact.magic.size());
        rendezvous.job.copy(contact.job.data(), contact.job.size());
        concat("host of ", rank).copy(contact.memory_space.data(), contact.memory_space.size());
        contact.rank = rank;
        contact.size = size;
        contact.port = port;
        std::string why;
        for (const auto until = soon(); Clock::now() < until; std::this_thread::sleep_for(10ms)) {
            control_ = connect_to(rendezvous.host, rendezvous.port, until, why);
            if (!control_.open()) continue;
            reader_ = {};
            const Frame first = frame();
            if (first.type != Frame::Type::challenge || first.body.size() != sizeof challenge_) continue;
            std::memcpy(challenge_.data(), first.body.data(), sizeof challenge_);
            const Join join = make_join(key_, challenge_, contact);
            nonce_ = join.nonce;
            send_frame(control_, Frame::Type::join, bytes_of(join));
            const Frame answer = frame();
            if (answer.type == Frame::Type::welcome && proved(answer) == "") return;
        }
        throw Error("not accepted");
    }
    // The nonce of the rendezvous, then the contacts of all ranks.
    std::string table() { return proved(frame()).value(); }
    std::optional<std::string> proved(const Frame& f) const {
        return read_answer(f.body, key_, challenge_, nonce_, f.type);
    }
    Frame frame() {
        do {  // a frame may have arrived with the previous one
            if (auto frame = reader_.read(control_)) return *frame;
        } while (!reader_.closed() && readable(control_, soon()));
        return {.type = Frame::Type::refusal, .body = "closed"};
    }
    void bye() const { send_frame(control_, Frame::Type::bye, ""); }

  private:
    Key key_;
    Nonce challenge_{}, nonce_{};
    Socket control_;
    FrameReader reader_;
};

// Scanners hold more connections than the hub allows; they send nothing, an endless frame, or an abort.
TEST(UnknownCallers, NeitherStopNorEnterTheRendezvous) {
    const Rendezvous rendezvous = free_rendezvous();
    constexpr int kSize = 2;
    constexpr double kTimeout = 8;  // 2 s for a caller
    Hub hub(rendezvous, kSize, kTimeout);
    std::vector<Socket> callers;
    callers.push_back(connected(rendezvous.port));
    send_frame(callers.back(), Frame::Type::abort, "stop");
    callers.push_back(connected(rendezvous.port));
    const uint32_t length = 1 << 20;
    write(callers.back(), &length, sizeof length);
    for (const auto most = PendingLimits::of(kSize, kTimeout).most; std::ssize(callers) < most + 2;)
        callers.push_back(connected(rendezvous.port));
    PlayedRank first(rendezvous, 0, kSize), second(rendezvous, 1, kSize);
    for (PlayedRank* rank : {&first, &second}) EXPECT_EQ(rank->table().size(), sizeof(Nonce) + 2 * sizeof(Contact));
    for (size_t i = 0; i < callers.size(); ++i) EXPECT_TRUE(is_closed_by_the_other_end(callers[i])) << i;
    std::string why;
    EXPECT_FALSE(connect_to("127.0.0.1", rendezvous.port, soon(), why).open())
        << "the table is given, and the hub listens";
    first.bye();
    second.bye();
    hub.end();
}

// The hub refuses a join with another secret, no secret, or the proof of an earlier connection.
TEST(UnknownCallers, WithoutTheSecretDoNotJoin) {
    const Rendezvous rendezvous = free_rendezvous();
    const Key key = key_of(rendezvous), other = key_of(free_rendezvous("another secret of a job"));
    Contact contact;
    kMagic.copy(contact.magic.data(), contact.magic.size());
    rendezvous.job.copy(contact.job.data(), contact.job.size());
    contact.size = 2;
    const Nonce earlier = fresh_nonce(), now = fresh_nonce();
    const Join join = make_join(key, now, contact);
    EXPECT_TRUE(read_join(bytes_of(join), key, now, rendezvous.job));
    EXPECT_FALSE(read_join(bytes_of(join), key, now, "another job"));
    EXPECT_FALSE(read_join(bytes_of(join), key, earlier, rendezvous.job));
    EXPECT_FALSE(read_join(bytes_of(make_join(other, now, contact)), key, now, rendezvous.job));
    EXPECT_FALSE(read_join(bytes_of(make_join(Key{}, now, contact)), key, now, rendezvous.job));
    for (size_t i = 0; i < sizeof join; i += 7) {
        std::string changed(bytes_of(join));
        changed[i] = static_cast<char>(changed[i] ^ 1);
        EXPECT_FALSE(read_join(changed, key, now, rendezvous.job)) << "byte " << i;
    }
    // The proof of one direction is not valid for the other, and that of a welcome is not valid for a refusal.
    const std::string answer = make_answer(key, now, join.nonce, Frame::Type::welcome, "text");
    EXPECT_EQ(read_answer(answer, key, now, join.nonce, Frame::Type::welcome), "text");
    EXPECT_EQ(read_answer(answer, key, now, join.nonce, Frame::Type::refusal), std::nullopt);
    EXPECT_EQ(read_answer(answer, key, join.nonce, now, Frame::Type::welcome), std::nullopt);
    EXPECT_EQ(read_answer(answer, other, now, join.nonce, Frame::Type::welcome), std::nullopt);
}

// Keyed BLAKE2b; the expected bytes are of Python's hashlib.blake2b(data, key=bytes(range(32)), digest_size=32).
TEST(Secret, IsTheKeyOfBlake2b) {
    Key key{};
    for (size_t i = 0; i < key.size(); ++i) key[i] = static_cast<unsigned char>(i);
    const Proof proof = prove(key, "label", {"part", ""});
    const unsigned char expected[] = {0x27, 0x98, 0x28, 0x4e, 0xdd, 0x8e, 0x29, 0xb2, 0xb7, 0xbf, 0xb0,
                                      0x0c, 0x25, 0xa1, 0x6e, 0x74, 0x7f, 0xde, 0x26, 0xc8, 0x10, 0x28,
                                      0x06, 0x80, 0x95, 0x5c, 0x8f, 0x5c, 0xa1, 0x17, 0xf1, 0xca};
    EXPECT_TRUE(std::equal(proof.begin(), proof.end(), expected));
}

TEST(Secret, ComesFromTheEnvironmentOrAFile) {
    const ScratchFolder folder;
    std::map<std::string, std::string> variables;
    const Environment environment = [&](const std::string& name) {
        const auto found = variables.find(name);
        return found == variables.end() ? std::nullopt : std::optional(found->second);
    };
    const auto key = [&](const std::string& run, const std::string& setting = "auto") {
        std::string why;
        return Secret(setting, run, environment).key(why);
    };
    EXPECT_THROW(key(""), UsageError);
    const std::string run = folder.path("run");
    EXPECT_EQ(key(run), std::nullopt);  // rank 0 has not made it yet
    const Secret of_rank_0("auto", run, environment);
    of_rank_0.make();
    const auto made = key(run);
    EXPECT_NE(made.value(), Key{});
    of_rank_0.make();  // a later start
    EXPECT_EQ(key(run), made);
    const std::filesystem::path file = folder.path("run/comm.secret");
    EXPECT_EQ(std::filesystem::status(file).permissions(), std::filesystem::perms(0600));
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(run), {}), 1) << "a temporary file";
    variables["TUTTI_SECRET_FILE"] = file.string();
    EXPECT_EQ(key(""), made);
    std::filesystem::permissions(file, std::filesystem::perms(0604));
    EXPECT_THROW(key(""), UsageError);
    std::filesystem::permissions(file, std::filesystem::perms(0640));  // a group, as Kubernetes sets it
    EXPECT_EQ(key(""), made);
    variables["TUTTI_SECRET_FILE"] = folder.path("nowhere");
    EXPECT_THROW(key(run), UsageError);
    variables["TUTTI_SECRET"] = "0123456789abcdef\n";
    EXPECT_NE(key(run).value(), made);
    variables["TUTTI_SECRET"] = "0123456789abcde";  // short
    EXPECT_THROW(key(run), UsageError);
    variables["TUTTI_SECRET"] = "none";
    EXPECT_EQ(key(run), Key{});
    EXPECT_EQ(key(run, file.string()), made);  // comm.secret comes first
    EXPECT_THROW(key(run, folder.path("nowhere")), UsageError);
    variables["TUTTI_SECRET"] = "0123456789abcdef";
    EXPECT_EQ(key(run, "none"), Key{});
}

// On one host there is no port, and the local socket refuses other users. Without root, the test has one user only.
TEST(UnknownCallers, OfAnotherUserReachNoLocalSocket) {
    const Socket listener = listen_locally("");
    const std::string name = local_name_of(listener);
    ASSERT_FALSE(name.empty());
    std::string why;
    const Socket ours = connect_locally(name, soon(), why);
    EXPECT_TRUE(ours.open()) << why;
    const auto accepted = [&] {
        for (const auto until = soon(); Clock::now() < until;)
            if (Socket socket = accept_from(listener); socket.open()) return socket;
        return Socket();
    };
    EXPECT_TRUE(accepted().open());
    if (geteuid() != 0) GTEST_SKIP() << "needs root to be two users";
    const pid_t child = fork();
    if (child == 0) {
        if (setresuid(65533, 65533, 65533) != 0) _exit(2);
        std::string refusal;
        const Socket theirs = connect_locally(name, soon(), refusal);
        const bool is_named =
            refusal.find("belongs to user 0, and the ranks of a host must be of one user, 65533") != std::string::npos;
        _exit(!theirs.open() && is_named ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_FALSE(accept_from(listener).open()) << "a connection of another user";
}

// The head of a message, as TcpWire sends it.
struct Head {
    enum Kind : uint32_t { hello, data };
    Kind kind = hello;
    int32_t tag = 0;
    int64_t bytes = 0;
    uint64_t number = 0;
};

TEST(UnknownCallers, AreClosedByARankThatWaitsForMessages) {
    const Rendezvous rendezvous = free_rendezvous();
    constexpr double kTimeout = 4;  // 1 s for a caller
    std::string received(5, ' ');
    std::thread rank([&] {
        TcpWire wire({.launcher = Launcher::environment, .rank = 0, .size = 2}, rendezvous, kTimeout, {});
        const auto request = wire.receive(received.data(), 5, 1, 7);
        for (const auto until = soon(); !wire.done(request) && Clock::now() < until;) std::this_thread::sleep_for(1ms);
        wire.finalize();
    });
    PlayedRank peer(rendezvous, 1, 2);
    const std::string table = peer.table();
    Contact zero;
    ASSERT_EQ(table.size(), sizeof(Nonce) + 2 * sizeof zero);
    const Key of_links = prove(key_of(rendezvous), "tutti links 1", {table.substr(0, sizeof(Nonce))});
    std::memcpy(&zero, table.data() + sizeof(Nonce), sizeof zero);
    std::vector<Socket> callers;
    for (int i = 0; i < 25; ++i) callers.push_back(connected(zero.port));
    const Head hello{.tag = 1, .bytes = sizeof(Proof)}, early{.kind = Head::data, .tag = 7, .bytes = int64_t{1} << 40},
        endless{.tag = 1, .bytes = int64_t{1} << 40};
    const int from = 1, to = 0;
    const Proof replayed = prove(of_links, "tutti hello 1", {bytes_of(Nonce{}), bytes_of(from), bytes_of(to)});
    write(callers[0], &hello, sizeof hello);
    write(callers[0], &replayed, sizeof replayed);
    write(callers[1], &early, sizeof early);
    write(callers[2], &hello, 5);
    write(callers[3], &endless, sizeof endless);
    for (size_t i = 0; i < callers.size(); ++i) EXPECT_TRUE(is_closed_by_the_other_end(callers[i])) << i;

    const Socket link = connected(zero.port);
    Nonce challenge{};
    ASSERT_TRUE(readable(link, soon()));
    ASSERT_EQ(recv(link.fd(), challenge.data(), challenge.size(), MSG_WAITALL), std::ssize(challenge));
    const Proof proof = prove(of_links, "tutti hello 1", {bytes_of(challenge), bytes_of(from), bytes_of(to)});
    const Head head{.kind = Head::data, .tag = 7, .bytes = 5};
    write(link, &hello, sizeof hello);
    write(link, &proof, sizeof proof);
    write(link, &head, sizeof head);
    write(link, "hello", 5);
    peer.bye();
    rank.join();
    EXPECT_EQ(received, "hello");
}

// A host that does not answer, simulated by a listener whose queue is full, so that the system drops further
// connections. Rank 1 fails while rank 0 connects to that host, and rank 0 must be told long before the connection's
// time-out.
TEST(GoneHost, DoesNotHideAnotherRanksFailure) {
    const Rendezvous rendezvous = free_rendezvous();
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
            processes::run_processes(
                "tcp", [&] { return std::make_unique<TcpWire>(launch, rendezvous, kTimeout, hosts); },
                {.timeout_s = kTimeout}, body);
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
    PlayedRank rank_2(rendezvous, 2, 3, port_of(silent));
    rank_0.join();
    rank_1.join();
    EXPECT_EQ(of_0, "rank 1 failed: the disk of rank 1 is gone");
    EXPECT_EQ(of_1, "the disk of rank 1 is gone");
}

// Without another failure, the connection's time-out names the host, before the operation's time-out.
TEST(GoneHost, IsNamed) {
    const Rendezvous rendezvous = free_rendezvous();
    const Socket silent = listen_on(true, 0);
    ASSERT_EQ(listen(silent.fd(), 0), 0);
    std::vector<Socket> queue;
    std::string why, error;
    while (queue.size() < 16 && (queue.empty() || queue.back().open()))
        queue.push_back(connect_to("127.0.0.1", port_of(silent), Clock::now() + 200ms, why));
    std::thread rank([&] {
        TcpWire wire({.launcher = Launcher::environment, .rank = 0, .size = 2}, rendezvous, 3, {});
        const auto request = wire.send("x", 1, 1, 7);
        try {
            for (const auto until = soon(); !wire.done(request) && Clock::now() < until;)
                std::this_thread::sleep_for(1ms);
        } catch (const Error& e) {
            error = e.what();
        }
        wire.finalize();
    });
    PlayedRank peer(rendezvous, 1, 2, port_of(silent));
    peer.table();
    peer.bye();
    rank.join();
    EXPECT_NE(error.find("cannot connect to rank 1 on host"), std::string::npos) << error;
    EXPECT_NE(error.find("no answer within 2.7 s (0.9 of comm.timeout_s): its host is gone"), std::string::npos)
        << error;
}

}  // namespace
}  // namespace tutti::comm::tcp
