// comm/tcp/door.h: the listening socket of a rank or of the hub, and the connections to it that have not proved yet
// that they belong to the job. Other programs connect too, port scanners among them: what may wait is bounded in
// number, size and time, and a stranger that says nothing costs its descriptor alone.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "tutti/comm/tcp/secret.h"
#include "tutti/comm/tcp/socket.h"

namespace tutti::comm::tcp {

Clock::duration seconds(double s);

// The oldest stranger is closed when there are more: a queue that many silent ones stop up would keep the ranks out,
// and a rank that was closed for another's sake tries again.
struct StrangerLimits {
    static constexpr int kAtOnce = 16;  // accepted before something else is done
    ptrdiff_t most = 0;                 // at a time
    Clock::duration time{};             // then closed
    static StrangerLimits of(int size, double timeout_s);
};

// What a rank sends first: `bytes` of them, of which the first are `head`; whoever begins otherwise is closed.
struct FirstMessage {
    std::string head;
    size_t bytes = 0;
};

class Door {
  public:
    using Greeting = std::function<std::string(const Nonce& challenge)>;  // what everybody is sent who connects
    struct Visitor {
        Socket socket;
        Nonce challenge{};
        std::string first;  // the first message, to be proved; nothing behind it has been read
    };

    // Closed: without a listener, fd() is -1 and look() finds nothing.
    Door() = default;
    Door(Socket listener, const StrangerLimits& limits, FirstMessage first, Greeting greeting);
    const Socket& listener() const { return listener_; }
    // For poll(): readable when look() has something to do; -1 when closed.
    int fd() const { return events_.fd(); }
    // Whether a stranger's time is over, which no event tells.
    bool is_late() const;
    // Never waits. Accepts, greets, reads and closes strangers; returns those whose first message is complete.
    std::vector<Visitor> look();

  private:
    struct Stranger {
        Visitor visitor;
        Clock::time_point since;
    };
    void listen_for_more(bool listen);
    bool hear(Visitor& visitor) const;  // false: it is over
    void accept_some();

    Socket listener_, events_;  // events_: an epoll instance
    StrangerLimits limits_;
    FirstMessage first_;
    Greeting greeting_;
    bool is_deaf_ = false;             // no descriptor was left to accept with
    std::vector<Stranger> strangers_;  // the oldest first
};

}  // namespace tutti::comm::tcp
