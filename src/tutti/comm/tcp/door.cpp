#include "tutti/comm/tcp/door.h"

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

Clock::duration seconds(double s) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s));
}

// A rank says who it is with its first bytes: 5 s cover lost packets. 64 more than the ranks, which may all come at
// once: 1,000 strangers a second leave a rank 64 ms to answer.
StrangerLimits StrangerLimits::of(int size, double timeout_s) {
    return {.most = size + 64, .time = seconds(std::min(5.0, timeout_s / 4))};
}

Door::Door(Socket listener, const StrangerLimits& limits, FirstMessage first, Greeting greeting)
    : listener_(std::move(listener)),
      events_(epoll_create1(EPOLL_CLOEXEC)),
      limits_(limits),
      first_(std::move(first)),
      greeting_(std::move(greeting)) {
    epoll_event event{.events = EPOLLIN, .data = {.fd = listener_.fd()}};
    check(events_.open() && epoll_ctl(events_.fd(), EPOLL_CTL_ADD, listener_.fd(), &event) == 0,
          "no connections can be awaited (epoll): ", std::strerror(errno));
}

bool Door::is_late() const {
    return is_deaf_ || (!strangers_.empty() && Clock::now() - strangers_.front().since > limits_.time);
}

void Door::listen_for_more(bool listen) {
    if (is_deaf_ != listen) return;
    epoll_event event{.events = listen ? EPOLLIN : 0U, .data = {.fd = listener_.fd()}};
    is_deaf_ = epoll_ctl(events_.fd(), EPOLL_CTL_MOD, listener_.fd(), &event) == 0 && !listen;
}

std::vector<Door::Visitor> Door::look() {
    std::vector<Visitor> complete;
    if (!events_.open()) return complete;
    const auto now = Clock::now();
    std::erase_if(strangers_, [&](const Stranger& s) { return now - s.since > limits_.time; });
    listen_for_more(true);
    std::array<epoll_event, 64> events{};
    const int count = epoll_wait(events_.fd(), events.data(), static_cast<int>(events.size()), 0);
    bool has_more = false;
    for (int i = 0; i < count; ++i) {
        const int fd = events[to_size(i)].data.fd;
        if (fd == listener_.fd()) {
            has_more = true;
            continue;
        }
        const auto is_it = [&](const Stranger& s) { return s.visitor.socket.fd() == fd; };
        const auto found = std::find_if(strangers_.begin(), strangers_.end(), is_it);
        if (found == strangers_.end()) continue;
        const bool goes_on = hear(found->visitor);
        if (goes_on && found->visitor.first.size() < first_.bytes) continue;
        if (goes_on && epoll_ctl(events_.fd(), EPOLL_CTL_DEL, fd, nullptr) == 0)
            complete.push_back(std::move(found->visitor));
        strangers_.erase(found);
    }
    if (has_more) accept_some();
    return complete;
}

bool Door::hear(Visitor& visitor) const {
    std::string& first = visitor.first;
    const size_t had = first.size();
    first.resize(first_.bytes);
    const ssize_t n = recv(visitor.socket.fd(), first.data() + had, first.size() - had, MSG_DONTWAIT);
    const bool is_open = n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
    first.resize(had + (n > 0 ? to_size(n) : 0));
    const size_t of_head = std::min(first.size(), first_.head.size());
    return is_open && first.compare(0, of_head, first_.head, 0, of_head) == 0;
}

void Door::accept_some() {
    for (int i = 0; i < StrangerLimits::kAtOnce; ++i) {
        Socket socket = accept_from(listener_);
        const bool is_full = !socket.open() && out_of_descriptors();
        if (!strangers_.empty() && (is_full || (socket.open() && std::ssize(strangers_) >= limits_.most)))
            strangers_.erase(strangers_.begin());
        else if (is_full)  // the event would come again and again; the next look() tries once more
            listen_for_more(false);
        if (!socket.open()) return;
        Stranger stranger;
        stranger.since = Clock::now();
        stranger.visitor.challenge = fresh_nonce();
        const std::string greeting = greeting_(stranger.visitor.challenge);
        epoll_event event{.events = EPOLLIN, .data = {.fd = socket.fd()}};
        if (send_some(socket, greeting) != greeting.size() ||
            epoll_ctl(events_.fd(), EPOLL_CTL_ADD, socket.fd(), &event) != 0)
            continue;
        stranger.visitor.socket = std::move(socket);
        strangers_.push_back(std::move(stranger));
    }
}

}  // namespace tutti::comm::tcp
