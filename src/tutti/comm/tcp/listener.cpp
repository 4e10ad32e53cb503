#include "tutti/comm/tcp/listener.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"

namespace tutti::comm::tcp {

namespace {
constexpr int kAcceptsAtOnce = 16;  // so that pending connections are read in between
}

Clock::duration seconds(double s) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s));
}

// 5 s for the first message cover lost packets. All ranks may connect at once; with 64 more, a rank has 64 ms to answer
// even while 1,000 other connections a second arrive.
PendingLimits PendingLimits::of(int size, double timeout_s) {
    return {.most = size + 64, .time = seconds(std::min(5.0, timeout_s / 4))};
}

Listener::Listener(Socket socket, const PendingLimits& limits, FirstMessage first, Greeting greeting)
    : socket_(std::move(socket)),
      events_(epoll_create1(EPOLL_CLOEXEC)),
      limits_(limits),
      first_(std::move(first)),
      greeting_(std::move(greeting)) {
    epoll_event event{.events = EPOLLIN, .data = {.fd = socket_.fd()}};
    const bool watched = events_.open() && epoll_ctl(events_.fd(), EPOLL_CTL_ADD, socket_.fd(), &event) == 0;
    check(watched, "cannot wait for connections (epoll): ", std::strerror(errno));
}

bool Listener::is_overdue() const {
    return is_paused_ || (!pending_.empty() && Clock::now() - pending_.front().since > limits_.time);
}

void Listener::set_accepting(bool accepting) {
    if (is_paused_ != accepting) return;
    epoll_event event{.events = accepting ? EPOLLIN : 0U, .data = {.fd = socket_.fd()}};
    is_paused_ = epoll_ctl(events_.fd(), EPOLL_CTL_MOD, socket_.fd(), &event) == 0 && !accepting;
}

std::vector<Listener::Connection> Listener::accept() {
    std::vector<Connection> complete;
    if (!events_.open()) return complete;
    const auto now = Clock::now();
    std::erase_if(pending_, [&](const Pending& p) { return now - p.since > limits_.time; });
    set_accepting(true);
    std::array<epoll_event, 64> events{};
    const int count = epoll_wait(events_.fd(), events.data(), static_cast<int>(events.size()), 0);
    bool has_more = false;
    for (int i = 0; i < count; ++i) {
        const int fd = events[to_size(i)].data.fd;
        if (fd == socket_.fd()) {
            has_more = true;
            continue;
        }
        const auto is_it = [&](const Pending& p) { return p.connection.socket.fd() == fd; };
        const auto found = std::find_if(pending_.begin(), pending_.end(), is_it);
        if (found == pending_.end()) continue;
        const bool goes_on = receive(found->connection);
        if (goes_on && found->connection.first.size() < first_.bytes) continue;
        if (goes_on && epoll_ctl(events_.fd(), EPOLL_CTL_DEL, fd, nullptr) == 0)
            complete.push_back(std::move(found->connection));
        pending_.erase(found);
    }
    if (has_more) accept_some();
    return complete;
}

bool Listener::receive(Connection& connection) const {
    std::string& first = connection.first;
    const size_t had = first.size();
    first.resize(first_.bytes);
    const ssize_t n = recv(connection.socket.fd(), first.data() + had, first.size() - had, MSG_DONTWAIT);
    const bool is_open = n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
    first.resize(had + (n > 0 ? to_size(n) : 0));
    const size_t of_head = std::min(first.size(), first_.head.size());
    return is_open && first.compare(0, of_head, first_.head, 0, of_head) == 0;
}

void Listener::accept_some() {
    for (int i = 0; i < kAcceptsAtOnce; ++i) {
        Socket socket = accept_from(socket_);
        const bool is_full = !socket.open() && out_of_descriptors();
        if (!pending_.empty() && (is_full || (socket.open() && std::ssize(pending_) >= limits_.most)))
            pending_.erase(pending_.begin());
        else if (is_full)  // or poll() would return at once; the next accept() tries again
            set_accepting(false);
        if (!socket.open()) return;
        Pending pending;
        pending.since = Clock::now();
        pending.connection.challenge = fresh_nonce();
        const std::string greeting = greeting_(pending.connection.challenge);
        epoll_event event{.events = EPOLLIN, .data = {.fd = socket.fd()}};
        if (send_some(socket, greeting) != greeting.size() ||
            epoll_ctl(events_.fd(), EPOLL_CTL_ADD, socket.fd(), &event) != 0)
            continue;
        pending.connection.socket = std::move(socket);
        pending_.push_back(std::move(pending));
    }
}

}  // namespace tutti::comm::tcp
