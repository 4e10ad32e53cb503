// comm/tcp/listener.h: the listening socket of a rank or of the hub, and its pending connections, which have not proved
// yet that they belong to the job. Other programs, such as port scanners, connect too: pending connections are bounded
// in number, size and time, and one that sends nothing costs only its descriptor.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "tutti/comm/tcp/secret.h"
#include "tutti/comm/tcp/socket.h"

namespace tutti::comm::tcp {

Clock::duration seconds(double s);

// With more, the oldest pending connection is closed: a queue full of silent connections would block the ranks, and a
// rank whose connection is closed reconnects.
struct PendingLimits {
    static constexpr int kAtOnce = 16;  // accepted before something else is done
    ptrdiff_t most = 0;                 // at a time
    Clock::duration time{};             // then closed
    static PendingLimits of(int size, double timeout_s);
};

// What a rank sends first: `bytes` of them, of which the first are `head`; a connection that begins otherwise is
// closed.
struct FirstMessage {
    std::string head;
    size_t bytes = 0;
};

class Listener {
  public:
    using Greeting = std::function<std::string(const Nonce& challenge)>;  // sent on every new connection
    struct Connection {
        Socket socket;
        Nonce challenge{};
        std::string first;  // the first message, to be proved; nothing behind it has been read
    };

    // Closed: without a socket, fd() is -1 and accept() finds nothing.
    Listener() = default;
    Listener(Socket socket, const PendingLimits& limits, FirstMessage first, Greeting greeting);
    const Socket& socket() const { return socket_; }
    // For poll(): readable when accept() has something to do; -1 when closed.
    int fd() const { return events_.fd(); }
    // Whether a pending connection has run out of time, which no event tells.
    bool is_overdue() const;
    // Does not block. Accepts connections, sends greetings, reads and closes pending ones; returns those whose first
    // message is complete.
    std::vector<Connection> accept();

  private:
    struct Pending {
        Connection connection;
        Clock::time_point since;
    };
    void set_accepting(bool accepting);
    bool receive(Connection& connection) const;  // false: the connection is over
    void accept_some();

    Socket socket_, events_;  // events_: an epoll instance
    PendingLimits limits_;
    FirstMessage first_;
    Greeting greeting_;
    bool is_paused_ = false;        // no descriptor was left to accept with
    std::vector<Pending> pending_;  // the oldest first
};

}  // namespace tutti::comm::tcp
