// Hosts files, places of ranks, verdicts, frames between launcher and agent.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/launch/agent.h"
#include "tutti/launch/hosts.h"
#include "tutti/launch/link.h"
#include "tutti/launch/verdict.h"

namespace tutti::launch {
namespace {

TEST(Hosts, ReadTheFilesOfOtherLaunchers) {
    const auto hosts = parse_hosts("# my cluster\nn1 slots=8\nn2:4   addr=10.0.0.2 rack=left # slow\n\nn3\n", "hosts");
    ASSERT_EQ(hosts.size(), 3U);
    EXPECT_EQ(hosts[0].name, "n1");
    EXPECT_EQ(hosts[0].slots, 8);
    EXPECT_EQ(hosts[0].address, "n1");
    EXPECT_EQ(hosts[1].slots, 4);
    EXPECT_EQ(hosts[1].address, "10.0.0.2");
    EXPECT_EQ(hosts[1].rack, "left");
    EXPECT_EQ(hosts[2].slots, 1);
    EXPECT_EQ(hosts[2].rack, "");
}

TEST(Hosts, NameTheLineThatIsWrong) {
    const auto six = parse_hosts("2001:db8::7 slots=2\n::1\n", "hosts");  // several colons: no number of slots
    ASSERT_EQ(six.size(), 2U);
    EXPECT_EQ(six[0].name, "2001:db8::7");
    EXPECT_EQ(six[0].slots, 2);
    EXPECT_EQ(six[1].name, "::1");
    const auto error_of = [](const std::string& text) -> std::string {
        try {
            parse_hosts(text, "hosts");
        } catch (const UsageError& error) {
            return error.what();
        }
        return "";
    };
    EXPECT_EQ(error_of("n1\nn2 slots=x"), "hosts:2: slots must be 1 to 4096, got 'x'");
    EXPECT_EQ(error_of("n1:0"), "hosts:1: slots must be 1 to 4096, got '0'");
    EXPECT_EQ(error_of("n1 slot=8"),
              "hosts:1: 'slot=8' is none of slots=N, addr=ADDRESS, rack=NAME; a line is `n1 slots=8 addr=10.0.0.1`");
    EXPECT_EQ(error_of("n1\nn1:2"), "hosts:2: the host n1 is named twice; slots=N says how many ranks it takes");
    EXPECT_EQ(error_of("n1 slots=1 slots=2"), "hosts:1: slots is given twice; give it once");
    EXPECT_EQ(error_of("n1:4 slots=4"), "hosts:1: slots is given twice; give it once");
    EXPECT_EQ(error_of("n1 rack=a addr=b rack=a"), "hosts:1: rack is given twice; give it once");
    EXPECT_EQ(error_of("-oProxyCommand=reboot"), "hosts:1: a host cannot be named '-oProxyCommand=reboot'");
    EXPECT_EQ(error_of(":8"), "hosts:1: a host cannot be named ''");
    EXPECT_EQ(error_of("{\"n1\"}"), "hosts:1: a host cannot be named '{\"n1\"}'");  // some other file
    EXPECT_EQ(error_of("n1\x01"), "hosts:1: a host cannot be named 'n1\x01'");
    EXPECT_EQ(error_of("# none\n"), "hosts names no host; a line is `n1 slots=8`");
}

TEST(Hosts, FillUpInOrder) {
    std::mt19937 random(54);
    for (int trial = 0; trial < 200; ++trial) {
        std::vector<int> ready(1 + random() % 6);
        for (int& slots : ready) slots = static_cast<int>(random() % 9);
        const int all = std::accumulate(ready.begin(), ready.end(), 0), ranks = static_cast<int>(random() % 40);
        const std::vector<int> placed = place(ready, ranks);
        EXPECT_EQ(std::accumulate(placed.begin(), placed.end(), 0), std::min(all, ranks));
        for (size_t i = 0; i < ready.size(); ++i) {
            EXPECT_LE(placed[i], ready[i]);
            // A host has free slots only where no later host has a rank.
            if (placed[i] < ready[i]) {
                EXPECT_EQ(std::accumulate(placed.begin() + static_cast<ptrdiff_t>(i) + 1, placed.end(), 0), 0);
            }
        }
    }
}

TEST(Hosts, HoldEachOthersCopies) {
    EXPECT_EQ(buddies({"", ""}), (std::vector<int>{1, 0}));
    EXPECT_EQ(buddies({""}), std::vector<int>{-1});
    std::mt19937 random(62);
    for (int trial = 0; trial < 500; ++trial) {
        const size_t hosts = 2 + random() % 20, racks = 1 + random() % 5;
        std::vector<std::string> rack_of(hosts);
        std::map<std::string, size_t> sizes;
        for (std::string& rack : rack_of) ++sizes[rack = std::string(1, static_cast<char>('a' + random() % racks))];
        const std::vector<int> buddy = buddies(rack_of);
        size_t pairs = 0, largest = 0;
        for (const auto& [rack, size] : sizes) largest = std::max(largest, size);
        std::set<int> holders(buddy.begin(), buddy.end());
        EXPECT_EQ(holders.size(), hosts);  // each holds one other's
        for (size_t i = 0; i < hosts; ++i) {
            const auto holder = to_size(buddy[i]);
            ASSERT_NE(holder, i);
            pairs += to_size(buddy[holder]) == i ? 1 : 0;
            // On another rack, for pairs where it is possible.
            if (hosts % 2 == 0 && 2 * largest <= hosts) {
                EXPECT_NE(rack_of[holder], rack_of[i]);
            }
        }
        EXPECT_EQ(pairs, hosts % 2 == 0 ? hosts : hosts - 3);
    }
}

RankEnd with_code(int rank, int code) { return {.rank = rank, .host = "n1", .ending = {.code = code}}; }
RankEnd killed(int rank, int signal) { return {.rank = rank, .host = "n2", .ending = {.signal = signal}}; }
RankEnd lost(int rank) { return {.rank = rank, .host = "n3", .ending = {}, .lost = true}; }
RankEnd by_launcher(int rank) {
    RankEnd end = killed(rank, SIGKILL);
    end.by_launcher = true;
    return end;
}

TEST(Verdict, OfEveryMixtureOfEnds) {
    struct Row {
        std::vector<RankEnd> ends;
        bool again;
        int code;
        std::string culprit;
    };
    const std::vector<Row> rows = {
        {{with_code(0, 0), with_code(1, 0)}, false, 0, ""},
        {{with_code(0, 75), with_code(1, 75)}, false, 75, ""},
        {{with_code(0, 75), with_code(1, 0)}, false, 75, ""},
        {{with_code(1, 5), killed(0, SIGKILL)}, true, 4, "rank 0 on host n2 was killed by signal 9 (Killed)"},
        {{with_code(1, 5), with_code(0, 4), with_code(2, 5)}, true, 4, "rank 0 on host n1 ended with code 4"},
        {{with_code(1, 5), by_launcher(0), lost(2)}, true, 4, "rank 2 on host n3 was lost with its host"},
        {{with_code(1, 5), with_code(0, 5)},
         true,
         4,
         "rank 1 on host n1 ended with code 5"},  // cut off from each other
        {{with_code(1, 75), killed(0, SIGSEGV)},
         true,
         4,
         "rank 0 on host n2 was killed by signal 11 (Segmentation fault)"},
        {{with_code(1, 5), with_code(0, 2)}, false, 2, "rank 0 on host n1 ended with code 2"},
        {{with_code(1, 5), killed(3, SIGKILL), with_code(0, 3)}, false, 3, "rank 0 on host n1 ended with code 3"},
        {{with_code(0, 70), with_code(1, 5)}, false, 70, "rank 0 on host n1 ended with code 70"},
        {{with_code(0, 127)}, false, 127, "rank 0 on host n1 ended with code 127"},
        {{lost(0), lost(1)}, true, 4, "rank 0 on host n3 was lost with its host"},
    };
    for (const Row& row : rows) {
        const Verdict verdict = judge(row.ends);
        EXPECT_EQ(verdict.again, row.again) << row.culprit;
        EXPECT_EQ(verdict.code, row.code) << row.culprit;
        EXPECT_EQ(verdict.culprit, row.culprit);
    }
}

struct Ends {
    Link a, b;
    Ends() {
        std::array<int, 2> to{}, from{};
        if (pipe(to.data()) != 0 || pipe(from.data()) != 0) throw Error("no pipe");
        a = Link(Descriptor(from[0]), Descriptor(to[1]));
        b = Link(Descriptor(to[0]), Descriptor(from[1]));
    }
};

// More than a pipe holds, in both directions at once: neither end ever waits for the other.
TEST(Link, CarriesFramesOfAllSizesBothWays) {
    Ends ends;
    std::mt19937 random(7);
    std::vector<std::string> bodies;
    for (int i = 0; i < 60; ++i) {
        std::string body(i % 7 == 0 ? 300000 : random() % 2000, '\0');
        for (char& c : body) c = static_cast<char>(random());
        bodies.push_back(std::move(body));
    }
    for (const std::string& body : bodies) {
        ends.a.send(Frame::Type::output, body);
        ends.b.send(Frame::Type::exited, body);
    }
    EXPECT_TRUE(ends.a.has_to_write());
    std::vector<std::string> at_a, at_b;
    for (int turn = 0; turn < 100000 && (at_a.size() < bodies.size() || at_b.size() < bodies.size()); ++turn) {
        ends.a.write();
        ends.b.write();
        while (auto frame = ends.a.read()) {
            EXPECT_EQ(frame->type, Frame::Type::exited);
            at_a.push_back(std::move(frame->body));
        }
        while (auto frame = ends.b.read()) at_b.push_back(std::move(frame->body));
    }
    EXPECT_EQ(at_a, bodies);
    EXPECT_EQ(at_b, bodies);
}

TEST(Link, OfASessionIsSealedAndBelievesNothingElse) {
    const comm::tcp::Socket listener = comm::tcp::listen_on(true, 0);
    const auto soon = Clock::now() + std::chrono::seconds(30);
    std::string why;
    const auto session = [](comm::tcp::Socket socket, unsigned char key) {
        comm::tcp::AuthenticatedSession made{.socket = std::move(socket), .reader = {}};
        made.key.fill(key);
        return made;
    };
    for (const bool same_key : {true, false}) {
        comm::tcp::Socket caller = comm::tcp::connect_to("127.0.0.1", port_of(listener), soon, why), accepted;
        ASSERT_TRUE(caller.open()) << why;
        while (!accepted.open()) accepted = comm::tcp::accept_from(listener);
        Link there(session(std::move(caller), 1), Link::End::caller);
        Link here(session(std::move(accepted), same_key ? 1 : 2), Link::End::listener);
        std::vector<std::string> got;
        there.send(Frame::Type::hello, "a name");
        there.send(Frame::Type::output, std::string(200000, 'x'));
        here.send(Frame::Type::ping);
        bool pinged = false;
        while (got.size() < 2 && here.open()) {
            there.write();
            while (const auto frame = here.read()) got.push_back(frame->body);
            while (const auto frame = there.read()) pinged = pinged || frame->type == Frame::Type::ping;
        }
        EXPECT_EQ(here.open(), same_key);
        EXPECT_EQ(got, (same_key ? std::vector<std::string>{"a name", std::string(200000, 'x')}
                                 : std::vector<std::string>{}));
        while (same_key && !pinged)
            while (const auto frame = there.read()) pinged = frame->type == Frame::Type::ping;
        EXPECT_EQ(pinged, same_key);
    }
}

TEST(Link, SeesTheEndOfTheOther) {
    Ends ends;
    ends.b.send(Frame::Type::hello, "last words");
    ends.b = Link();
    EXPECT_EQ(ends.a.read()->body, "last words");
    EXPECT_FALSE(ends.a.read().has_value());
    EXPECT_FALSE(ends.a.open());
}

// The head of a frame of 4 GB is not our protocol: a shell that prints a greeting, for instance.
TEST(Link, ClosesWhenTheOtherSpeaksAnotherLanguage) {
    std::array<int, 2> to{}, from{};
    ASSERT_EQ(pipe(to.data()), 0);
    ASSERT_EQ(pipe(from.data()), 0);
    Link link = Link(Descriptor(from[0]), Descriptor(to[1]));
    const Descriptor other(from[1]);
    const Descriptor unread(to[0]);
    const std::string greeting = "Welcome to node 1!\n";
    ASSERT_EQ(write(other.fd(), greeting.data(), greeting.size()), static_cast<ssize_t>(greeting.size()));
    EXPECT_FALSE(link.read().has_value());
    EXPECT_FALSE(link.open());
}

TEST(Frames, KeepWhatTheySay) {
    const Start start{.job = "j",
                      .host = "2",
                      .generation = 7,
                      .silence_s = 2.5,
                      .grace_s = 3,
                      .directory = "/a b",
                      .words = {"tutti", "train", "c'o\"nfig.toml", "--set", "data.train=[\"\\n\"]"},
                      .environment = {{"TUTTI_SECRET", "0123"}, {"EMPTY", ""}},
                      .ranks = {{.rank = 5, .environment = {{"TUTTI_RANK", "5"}}}}};
    const Start read = read_start(to_body(start));
    EXPECT_EQ(read.words, start.words);
    EXPECT_EQ(read.environment, start.environment);
    EXPECT_EQ(read.directory, start.directory);
    EXPECT_EQ(read.generation, 7);
    EXPECT_EQ(read.silence_s, 2.5);
    ASSERT_EQ(read.ranks.size(), 1U);
    EXPECT_EQ(read.ranks[0].environment, start.ranks[0].environment);
    const std::string body = output_body(300, 2, std::string("a\0b", 3));
    EXPECT_EQ(read_output(body).rank, 300);
    EXPECT_EQ(read_output(body).stream, 2);
    EXPECT_EQ(read_output(body).bytes, std::string_view("a\0b", 3));
    EXPECT_THROW(read_output("abc"), Error);
}

}  // namespace
}  // namespace tutti::launch
