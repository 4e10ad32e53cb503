#include "tutti/comm/tcp/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"

namespace tutti::comm::tcp {

namespace {

constexpr size_t kFrameHead = 5;  // length, type

int milliseconds_until(Clock::time_point until) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
    return static_cast<int>(std::clamp<int64_t>(left + 1, 0, 1000000));
}

void set_up(int fd) {
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    fcntl(fd, F_SETFL, O_NONBLOCK);
}

bool wait_for(int fd, short events, Clock::time_point until) {
    pollfd entry{.fd = fd, .events = events, .revents = 0};
    while (true) {
        const int ready = poll(&entry, 1, milliseconds_until(until));
        if (ready > 0) return true;
        if (ready < 0 && errno == EINTR) continue;
        return false;
    }
}

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// Null on failure, with the reason in `why`.
Addresses addresses_of(const std::string& host, int port, int flags, std::string& why) {
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = flags;
    if (const int code = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found); code != 0)
        why = concat("the host name ", host, " cannot be resolved: ", gai_strerror(code));
    return {found, freeaddrinfo};
}

Socket begin(const addrinfo& address, std::string& why) {
    Socket socket(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (socket.open()) set_up(socket.fd());
    if (socket.open() && (connect(socket.fd(), address.ai_addr, address.ai_addrlen) == 0 || errno == EINPROGRESS))
        return socket;
    why = std::strerror(errno);
    return {};
}

constexpr size_t kLocalHead = offsetof(sockaddr_un, sun_path) + 1;  // an abstract name follows a zero byte

class LocalAddress {
  public:
    explicit LocalAddress(const std::string& name) : name_size_(name.size()) {
        address_.sun_family = AF_UNIX;
        check(name.size() < sizeof address_.sun_path, "the name of a local socket has ", name.size(),
              " bytes, required fewer than ", sizeof address_.sun_path);
        name.copy(address_.sun_path + 1, name.size());
    }
    const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address_); }
    // Without a name: the family alone, so the system chooses a name.
    socklen_t size() const { return static_cast<socklen_t>(name_size_ > 0 ? kLocalHead + name_size_ : kLocalHead - 1); }

  private:
    sockaddr_un address_{};
    size_t name_size_;
};

// The error for a local connection whose peer is of another user; "" for others.
std::string foreign_owner(const Socket& socket) {
    int domain = 0;
    socklen_t size = sizeof domain;
    if (getsockopt(socket.fd(), SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0 || domain != AF_UNIX) return "";
    ucred other{};
    size = sizeof other;
    if (getsockopt(socket.fd(), SOL_SOCKET, SO_PEERCRED, &other, &size) == 0 && other.uid == geteuid()) return "";
    return concat("the local socket belongs to user ", other.uid, ", and the ranks of a host must be of one user, ",
                  geteuid());
}

}  // namespace

Socket::~Socket() {
    if (fd_ >= 0) close(fd_);
}

Socket& Socket::operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
}

Socket listen_at(const std::string& address, int port, std::string& why) {
    const Addresses one = addresses_of(address, port, AI_NUMERICHOST, why);
    if (!one) return {};
    Socket socket(::socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int on = 1, off = 0;
    if (socket.open()) setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (socket.open() && one->ai_family == AF_INET6)
        setsockopt(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (!socket.open() || bind(socket.fd(), one->ai_addr, one->ai_addrlen) != 0 || listen(socket.fd(), 1024) != 0) {
        why = std::strerror(errno);
        return {};
    }
    set_up(socket.fd());
    return socket;
}

Socket listen_on(bool loopback, int port) {
    std::string why;
    if (loopback) return listen_at("127.0.0.1", port, why);
    Socket socket = listen_at("::", port, why);  // accepts IPv4 too
    return socket.open() || errno == EADDRINUSE ? std::move(socket) : listen_at("0.0.0.0", port, why);
}

int port_of(const Socket& listener) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&address), &size);
    return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                               : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

Socket listen_locally(const std::string& name) {
    Socket socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const LocalAddress address(name);
    if (!socket.open() || bind(socket.fd(), address.get(), address.size()) != 0 || listen(socket.fd(), 1024) != 0)
        return {};
    set_up(socket.fd());
    return socket;
}

std::string local_name_of(const Socket& listener) {
    sockaddr_un address{};
    socklen_t size = sizeof address;
    getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&address), &size);
    return size > kLocalHead ? std::string(address.sun_path + 1, size - kLocalHead) : "";
}

Socket accept_from(const Socket& listener) {
    for (;;) {
        Socket socket(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!socket.open()) return socket;
        set_up(socket.fd());
        if (foreign_owner(socket).empty()) return socket;
    }
}

Socket connect_locally(const std::string& name, Clock::time_point until, std::string& why) {
    const LocalAddress address(name);
    for (;; std::this_thread::sleep_for(std::chrono::milliseconds(2))) {
        Socket socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
        if (socket.open()) set_up(socket.fd());
        if (socket.open() && connect(socket.fd(), address.get(), address.size()) == 0) {
            why = foreign_owner(socket);
            return why.empty() ? std::move(socket) : Socket();
        }
        why = concat("the local socket ", name, ": ", std::strerror(errno));
        if (errno != EAGAIN || Clock::now() > until) return {};  // EAGAIN: the listener's queue is full
    }
}

int process_of_peer(const Socket& connection) {
    ucred other{};
    socklen_t size = sizeof other;
    return getsockopt(connection.fd(), SOL_SOCKET, SO_PEERCRED, &other, &size) == 0 ? other.pid : 0;
}

Socket connect_to(const std::string& host, int port, Clock::time_point until, std::string& why) {
    const Addresses all = addresses_of(host, port, 0, why);
    for (const addrinfo* a = all.get(); a != nullptr; a = a->ai_next) {
        Socket socket = begin(*a, why);
        if (!socket.open()) continue;
        wait_for(socket.fd(), POLLOUT, until);
        const std::string failure = outcome_of(socket).value_or(std::strerror(ETIMEDOUT));
        if (failure.empty()) return socket;
        why = concat(host, ":", port, ": ", failure);
    }
    return {};
}

Socket begin_connection(const std::string& address, int port, std::string& why) {
    const Addresses one = addresses_of(address, port, AI_NUMERICHOST, why);
    return one ? begin(*one, why) : Socket();
}

std::optional<std::string> outcome_of(const Socket& connection) {
    pollfd entry{.fd = connection.fd(), .events = POLLOUT, .revents = 0};
    if (poll(&entry, 1, 0) <= 0) return std::nullopt;
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(connection.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
    return error == 0 ? "" : std::strerror(error);
}

std::string address_of_peer(const Socket& socket) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    std::array<char, NI_MAXHOST> text{};
    if (getpeername(socket.fd(), reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
        getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, text.data(), text.size(), nullptr, 0,
                    NI_NUMERICHOST) != 0)
        return "";
    const std::string name = text.data();
    return name.starts_with("::ffff:") ? name.substr(7) : name;
}

bool is_numeric(const std::string& host) {
    std::string why;
    return addresses_of(host, 0, AI_NUMERICHOST, why) != nullptr;
}

bool is_loopback(const std::string& host) {
    const bool numeric = host.find_first_not_of("0123456789.") == std::string::npos;  // unlike 127.example.com
    return host == "localhost" || host == "::1" || (numeric && host.starts_with("127."));
}

ReceivedBytes receive_some(const Socket& socket, size_t most) {
    ReceivedBytes received;
    std::array<char, 4096> piece;
    while (received.bytes.size() < most) {
        const ssize_t n = recv(socket.fd(), piece.data(), std::min(piece.size(), most - received.bytes.size()), 0);
        if (n > 0) {
            received.bytes.append(piece.data(), to_size(n));
            continue;
        }
        if (n < 0 && errno == EINTR) continue;
        received.ended = n == 0 || errno != EAGAIN;
        break;
    }
    return received;
}

std::optional<size_t> send_some(const Socket& socket, std::string_view bytes) {
    size_t at = 0;
    while (at < bytes.size()) {
        const ssize_t n = ::send(socket.fd(), bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
        if (n > 0)
            at += to_size(n);
        else if (errno == EAGAIN)
            break;
        else if (errno != EINTR)
            return std::nullopt;
    }
    return at;
}

void end_sending(const Socket& socket) { shutdown(socket.fd(), SHUT_WR); }

bool out_of_descriptors() { return errno == EMFILE || errno == ENFILE; }

bool readable(const Socket& socket, Clock::time_point until) { return wait_for(socket.fd(), POLLIN, until); }

std::string to_bytes(Frame::Type type, std::string_view body) {
    std::string bytes(kFrameHead, '\0');
    const auto length = static_cast<uint32_t>(body.size());
    std::memcpy(bytes.data(), &length, sizeof length);
    bytes[4] = static_cast<char>(type);
    return bytes.append(body);
}

bool send_frame(const Socket& socket, Frame::Type type, std::string_view body) {
    const std::string bytes = to_bytes(type, body);
    const auto until = Clock::now() + std::chrono::seconds(1);
    for (size_t at = 0; at < bytes.size();) {
        const ssize_t n = ::send(socket.fd(), bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
        if (n > 0)
            at += to_size(n);
        else if (errno != EINTR && (errno != EAGAIN || !wait_for(socket.fd(), POLLOUT, until)))
            return false;
    }
    return true;
}

std::optional<Frame> FrameReader::read(const Socket& socket, size_t longest) {
    if (!closed_ && buffer_.size() < kFrameHead + longest) {
        const ReceivedBytes received = receive_some(socket, kFrameHead + longest - buffer_.size());
        buffer_ += received.bytes;
        closed_ = received.ended;
    }
    return take(longest);
}

std::optional<Frame> FrameReader::take(size_t longest) {
    if (buffer_.size() < kFrameHead) return std::nullopt;
    uint32_t length = 0;
    std::memcpy(&length, buffer_.data(), sizeof length);
    if (length > longest) {  // another protocol
        closed_ = true;
        buffer_.clear();
        return std::nullopt;
    }
    if (buffer_.size() < kFrameHead + length) return std::nullopt;
    Frame frame{static_cast<Frame::Type>(buffer_[4]), buffer_.substr(kFrameHead, length)};
    buffer_.erase(0, kFrameHead + length);
    return frame;
}

}  // namespace tutti::comm::tcp
