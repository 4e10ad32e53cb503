// http/server.h: a small server for a page that a process shows of itself: one thread, which also does other work
// between two turns. Bounds of what clients can take: connections, bytes and seconds of a request, bytes that wait
// for a slow reader, and the seconds that the reader may take none of them.
#pragma once

#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "tutti/comm/tcp/socket.h"
#include "tutti/http/message.h"

namespace tutti::http {

// Where to listen: "127.0.0.1:6007", "[::1]:0", "6007" (of this machine alone). Port 0: a free one.
struct Address {
    std::string host = "127.0.0.1";  // numeric
    int port = 0;
    bool loopback() const;
    std::string text() const;  // "127.0.0.1:6007", "[::1]:6007"
};
// UsageError for another text, with `option` in its message.
Address parse_address(const std::string& option, const std::string& text);

// Events for one reader. next() is called when the reader has taken all before; "" while there is nothing new.
class Stream {
  public:
    virtual ~Stream() = default;
    virtual std::string next() = 0;
};

class Server {
  public:
    using Answer = std::variant<Response, std::unique_ptr<Stream>>;
    struct Bounds {
        size_t connections = 64;
        std::chrono::milliseconds request{5000};     // until a request is whole
        std::chrono::milliseconds no_reader{30000};  // in which a reader takes none of what waits
        std::chrono::milliseconds quiet{15000};      // then a stream gets a comment, so that proxies keep it
    };

    // Listens. UsageError where the address cannot be had. `answer` is called for each request that is whole.
    Server(const Address& address, std::function<Answer(const Request&)> answer, Bounds bounds);
    const Address& address() const { return address_; }  // with the port that was chosen

    // Serves for up to `time`; returns earlier when a connection had something to do.
    void turn(std::chrono::milliseconds time);
    // Asks each stream for what is new.
    void advance();
    // Sends `last` to each stream as far as its reader takes it, and ends all connections.
    void end(const std::string& last);
    size_t connections() const { return connections_.size(); }

  private:
    using Clock = std::chrono::steady_clock;
    struct Connection {
        comm::tcp::Socket socket;
        std::string received, waiting;  // waiting: to be sent
        std::unique_ptr<Stream> stream;
        bool answered = false, over = false;     // over: all is sent, and the reader has to close
        bool hears = true;                       // the other end may send more
        Clock::time_point since = Clock::now();  // of the begin, later of the last progress
    };
    void accept();
    bool serve(Connection& connection);  // false: it ends
    bool send(Connection& connection);

    Address address_;
    std::function<Answer(const Request&)> answer_;
    Bounds bounds_;
    comm::tcp::Socket listener_;
    Clock::time_point accepts_from_{};
    std::list<Connection> connections_;  // oldest first
};

// Which requests are answered. On a loopback address a request must name it (no page of another site can reach it under
// a name of its own: DNS rebinding). On another address a token is required: in the first request's URL, from then on
// as a cookie, or as "Authorization: Bearer TOKEN".
class Access {
  public:
    Access() = default;  // of a loopback address
    explicit Access(std::string token) : token_(std::move(token)) {}
    static std::string fresh_token();

    // Nothing: the request may be answered; else what to answer.
    std::optional<Response> refuse(const Request& request) const;

  private:
    std::string token_;
};

}  // namespace tutti::http
