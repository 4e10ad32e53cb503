// comm/tcp/listener.h: a listening socket, and its pending connections, which have not proved yet that they belong to
// the job. Other programs, such as port scanners, connect too, so pending connections are bounded in number, size and
// time, and one that sends nothing costs only its descriptor.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "tutti/comm/tcp/secret.h"
#include "tutti/comm/tcp/socket.h"

namespace tutti::comm::tcp {

Clock::duration seconds(double s);

// If there are too many pending connections, the oldest is closed: silent ones must not keep the ranks out, and a rank
// whose connection is closed reconnects.
struct PendingLimits {
    ptrdiff_t most = 0;      // connections
    Clock::duration time{};  // until a connection is closed
    static PendingLimits of(int size, double timeout_s);
};

// The required first message of a connection: `bytes` bytes that begin with `head`. Other connections are closed.
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
        std::string first;  // the first message, whose proof is not checked yet; nothing after it has been read
    };

    // Closed: without a socket, fd() is -1 and accept() finds nothing.
    Listener() = default;
    Listener(Socket socket, const PendingLimits& limits, FirstMessage first, Greeting greeting);
    const Socket& socket() const { return socket_; }
    // For poll(): readable if accept() has something to do; -1 if closed.
    int fd() const { return events_.fd(); }
    // Whether accept() has to close a pending connection or to accept again, which makes fd() not readable.
    bool is_overdue() const;
    // Accepts connections, sends greetings, reads from pending connections and closes them; returns those whose first
    // message is complete. Does not block.
    std::vector<Connection> accept();

  private:
    struct Pending {
        Connection connection;
        Clock::time_point since;
    };
    void set_accepting(bool accepting);
    bool receive(Connection& connection) const;  // false: the connection is over
    void accept_some();

    Socket socket_, events_;  // events_: epoll
    PendingLimits limits_;
    FirstMessage first_;
    Greeting greeting_;
    bool is_paused_ = false;        // does not accept, because no descriptor was left
    std::vector<Pending> pending_;  // the oldest first
};

}  // namespace tutti::comm::tcp
