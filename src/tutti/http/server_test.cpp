// The server over real connections: answers, streams, bounds, access. Time-outs are set so that they pass at once or
// never.
#include "tutti/http/server.h"

#include <gtest/gtest.h>

#include "tutti/base/error.h"

namespace tutti::http {
namespace {

using comm::tcp::ReceivedBytes, comm::tcp::Socket;
using namespace std::chrono_literals;

struct Counting final : Stream {
    explicit Counting(int& calls) : calls_(calls) {}
    std::string next() override {
        ++calls_;
        return std::exchange(text, "");
    }
    std::string text = "data: first\n\n";
    int& calls_;
};

class ServerTest : public ::testing::Test {
  protected:
    // Never within a test, whatever the machine does.
    static constexpr Server::Bounds kPatient{.connections = 4, .request = 1h, .no_reader = 1h, .quiet = 1h};

    void start(const Server::Bounds& bounds = kPatient) {
        server_ = std::make_unique<Server>(
            Address{},
            [this](const Request& request) -> Server::Answer {
                if (request.path == "/stream") {
                    auto stream = std::make_unique<Counting>(calls_);
                    stream_ = stream.get();
                    return stream;
                }
                return Response{.body = request.path == "/large" ? std::string(8 << 20, 'x') : "small", .fields = {}};
            },
            bounds);
    }
    Socket connect() {
        std::string why;
        Socket socket =
            comm::tcp::connect_to("127.0.0.1", server_->address().port, std::chrono::steady_clock::now() + 60s, why);
        EXPECT_TRUE(socket.open()) << why;
        return socket;
    }
    static std::string request(const std::string& path) {
        return concat("GET ", path, " HTTP/1.1\r\nHost: localhost\r\n\r\n");
    }
    // Until the connection has `part`, or has ended where that is empty; what has arrived.
    std::string read(const Socket& socket, const std::string& part = "") {
        std::string all;
        for (int turn = 0; turn < 20000; ++turn) {
            server_->turn(1ms);
            const ReceivedBytes arrived = comm::tcp::receive_some(socket, 1 << 20);
            all += arrived.bytes;
            if (arrived.ended || (!part.empty() && all.find(part) != std::string::npos)) break;
        }
        return all;
    }
    void turns(int n) {
        for (int i = 0; i < n; ++i) server_->turn(1ms);
    }

    std::unique_ptr<Server> server_;
    Counting* stream_ = nullptr;
    int calls_ = 0;
};

TEST_F(ServerTest, AnswersAndCloses) {
    start();
    Socket socket = connect();
    // In two pieces, and with more behind than the server reads.
    comm::tcp::send_some(socket, request("/a").substr(0, 9));
    turns(5);
    comm::tcp::send_some(socket, request("/a").substr(9) + std::string(10000, 'z'));
    const std::string answer = read(socket);
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK")) << answer;
    EXPECT_TRUE(answer.ends_with("\r\n\r\nsmall")) << answer;
    Socket large = connect();
    comm::tcp::send_some(large, request("/large"));
    comm::tcp::end_sending(large);  // a reader may end its side
    const std::string body = read(large);
    EXPECT_EQ(body.size() - body.find("\r\n\r\n") - 4, size_t{8 << 20});
    Socket wrong = connect();
    comm::tcp::send_some(wrong, "DELETE / HTTP/1.1\r\nHost: a\r\n\r\n");
    const std::string refused = read(wrong);
    EXPECT_TRUE(refused.starts_with("HTTP/1.1 405 ")) << refused;
    EXPECT_NE(refused.find("Allow: GET, HEAD\r\n"), std::string::npos);
}

TEST_F(ServerTest, AStreamGoesOnUntilItsEnd) {
    start();
    Socket socket = connect();
    comm::tcp::send_some(socket, request("/stream"));
    EXPECT_NE(read(socket, "first\n\n").find("text/event-stream"), std::string::npos);
    stream_->text = "data: second\n\n";
    server_->advance();
    EXPECT_EQ(read(socket, "second\n\n"), "data: second\n\n");
    server_->advance();
    server_->advance();
    EXPECT_EQ(calls_, 4);
    server_->end("event: end\n\n");
    EXPECT_EQ(read(socket), "event: end\n\n");
    EXPECT_EQ(server_->connections(), 0U);
}

TEST_F(ServerTest, AQuietStreamGetsAComment) {
    start({.connections = 4, .request = 1h, .no_reader = 1h, .quiet = 0ms});
    Socket socket = connect();
    comm::tcp::send_some(socket, request("/stream"));
    read(socket, "first\n\n");
    server_->advance();
    EXPECT_EQ(read(socket, "\n\n"), ": still here\n\n");
}

// A reader that takes nothing holds one event and no more, and goes when its time is over.
TEST_F(ServerTest, ASlowReaderIsNotWaitedFor) {
    start({.connections = 4, .request = 1h, .no_reader = 0ms, .quiet = 1h});
    Socket socket = connect();
    comm::tcp::send_some(socket, request("/stream"));
    for (int i = 0; i < 100 && stream_ == nullptr; ++i) turns(1);
    ASSERT_NE(stream_, nullptr);
    stream_->text = std::string(64 << 20, 'x');
    const int before = calls_;
    for (int i = 0; i < 100 && server_->connections() > 0; ++i) {
        server_->advance();
        turns(1);
    }
    EXPECT_EQ(server_->connections(), 0U);
    EXPECT_EQ(calls_, before + 1);
}

TEST_F(ServerTest, StrangersThatSayNothingKeepNobodyOut) {
    start();
    std::vector<Socket> silent;
    for (int i = 0; i < 200; ++i) {
        silent.push_back(connect());
        turns(1);
        EXPECT_LE(server_->connections(), kPatient.connections);
    }
    Socket socket = connect();
    comm::tcp::send_some(socket, request("/"));
    EXPECT_TRUE(read(socket).ends_with("small"));
    start({.connections = 4, .request = 0ms, .no_reader = 1h, .quiet = 1h});
    Socket slow = connect();
    comm::tcp::send_some(slow, "GET ");
    for (int i = 0; i < 100; ++i) turns(1);
    EXPECT_EQ(server_->connections(), 0U);
}

TEST_F(ServerTest, MoreReadersThanConnectionsAreToldSo) {
    start();
    std::vector<Socket> readers;
    for (size_t i = 0; i < kPatient.connections; ++i) {
        readers.push_back(connect());
        comm::tcp::send_some(readers.back(), request("/stream"));
        read(readers.back(), "first\n\n");
    }
    Socket socket = connect();
    EXPECT_TRUE(read(socket, "readers\n").starts_with("HTTP/1.1 503 "));
    EXPECT_EQ(server_->connections(), kPatient.connections);
}

TEST_F(ServerTest, AnAddressThatIsTakenIsSaid) {
    start();
    try {
        Server(server_->address(), {}, kPatient);
        FAIL() << "listens twice";
    } catch (const UsageError& error) {
        EXPECT_NE(std::string(error.what()).find(server_->address().text()), std::string::npos) << error.what();
    }
    EXPECT_THROW(Server({"192.0.2.1", 0}, {}, kPatient), UsageError);
    EXPECT_THROW(Server({"no.such.host", 0}, {}, kPatient), UsageError);
}

TEST(Address, IsReadAsItIsWritten) {
    EXPECT_EQ(parse_address("--listen", "6007").text(), "127.0.0.1:6007");
    EXPECT_EQ(parse_address("--listen", "localhost:1").text(), "127.0.0.1:1");
    EXPECT_EQ(parse_address("--listen", "10.0.0.3:80").text(), "10.0.0.3:80");
    EXPECT_EQ(parse_address("--listen", "[::1]:0").text(), "[::1]:0");
    EXPECT_TRUE(parse_address("--listen", "[::1]:0").loopback());
    EXPECT_FALSE(parse_address("--listen", "0.0.0.0:0").loopback());
    for (const char* text :
         {"", "a", ":80", "1.2.3.4", "1.2.3.4:", "1.2.3.4:70000", "80 ", "-1", "::1", "127.example.com:0"})
        EXPECT_THROW(parse_address("--listen", text), UsageError) << text;
}

Request from(const std::string& host, const std::string& more = "", const std::string& target = "/") {
    return receive(concat("GET ", target, " HTTP/1.1\r\nHost: ", host, "\r\n", more, "\r\n")).request;
}

TEST(Access, ALoopbackAddressAnswersUnderItsOwnNameAlone) {
    const Access access;
    for (const char* host : {"localhost", "localhost:6007", "127.0.0.1:6007", "[::1]:6007"})
        EXPECT_FALSE(access.refuse(from(host))) << host;
    for (const char* host : {"example.com", "127.0.0.1.example.com:6007", "localhost.example.com", "10.0.0.1"})
        EXPECT_EQ(access.refuse(from(host)).value_or(Response{}).status, 421) << host;
}

TEST(Access, AnotherAddressNeedsTheToken) {
    const std::string token = Access::fresh_token();
    EXPECT_EQ(token.size(), 32U);
    EXPECT_NE(token, Access::fresh_token());
    const Access access(token);
    const auto status = [&](const Request& request) {
        const auto refused = access.refuse(request);
        return refused ? refused->status : 200;
    };
    EXPECT_EQ(status(from("a")), 403);
    EXPECT_EQ(status(from("a", "", "/metrics?token=" + token.substr(1))), 403);
    EXPECT_EQ(status(from("a", "Cookie: tutti=" + token + "\r\n")), 200);
    EXPECT_EQ(status(from("a", "Cookie: tutti=x\r\n")), 403);
    EXPECT_EQ(status(from("a", "Authorization: Bearer " + token + "\r\n", "/metrics")), 200);
    const auto first = access.refuse(from("a", "", "/?token=" + token));
    ASSERT_TRUE(first);
    EXPECT_EQ(first->status, 303);
    EXPECT_EQ(first->fields[0], (std::pair<std::string, std::string>("Location", "/")));
    EXPECT_NE(first->fields[1].second.find("HttpOnly; SameSite=Strict"), std::string::npos);
}

}  // namespace
}  // namespace tutti::http
