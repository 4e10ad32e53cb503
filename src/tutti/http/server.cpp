#include "tutti/http/server.h"

#include <poll.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "tutti/base/digits.h"
#include "tutti/base/error.h"
#include "tutti/comm/tcp/secret.h"

namespace tutti::http {

namespace {

using comm::tcp::is_same, comm::tcp::Socket;

constexpr size_t kMostReceived = 2 * kLongestHead;
constexpr std::chrono::seconds kLinger{1};
constexpr std::chrono::seconds kAcceptPause{1};  // after the process has run out of descriptors

// "example:80" -> "example", "[::1]:80" -> "::1", "[::1]" -> "::1".
std::string host_of(const std::string& text) {
    if (text.starts_with('[')) return text.substr(1, text.find(']') - 1);
    return text.substr(0, text.rfind(':'));
}

}  // namespace

bool Address::loopback() const { return comm::tcp::is_loopback(host); }

std::string Address::text() const {
    return host.find(':') == std::string::npos ? concat(host, ":", port) : concat("[", host, "]:", port);
}

Address parse_address(const std::string& option, const std::string& text) {
    Address address;
    const size_t colon = text.rfind(':');
    std::string_view port = text;
    if (colon != std::string::npos) {
        address.host = host_of(text);
        if (address.host == "localhost") address.host = "127.0.0.1";
        port.remove_prefix(colon + 1);
    }
    address.port = parse_number<int>(port).value_or(-1);
    check<UsageError>(address.port >= 0 && address.port <= 65535 && comm::tcp::is_numeric(address.host), option, " ",
                      text, ": required: a port, or a numeric address and a port, such as 6007, ",
                      "127.0.0.1:6007 or [::]:6007");
    return address;
}

Server::Server(const Address& address, std::function<Answer(const Request&)> answer, Bounds bounds)
    : address_(address), answer_(std::move(answer)), bounds_(bounds) {
    std::string why;
    listener_ = comm::tcp::listen_at(address.host, address.port, why);
    check<UsageError>(listener_.open(), "cannot listen at ", address.text(), ": ", why,
                      "; try another port, or 0 for a free one");
    address_.port = comm::tcp::port_of(listener_);
}

void Server::turn(std::chrono::milliseconds time) {
    std::vector<pollfd> watched;
    const auto now = Clock::now();
    if (now >= accepts_from_) watched.push_back({.fd = listener_.fd(), .events = POLLIN, .revents = 0});
    for (const Connection& c : connections_)
        watched.push_back({.fd = c.socket.fd(),
                           .events = static_cast<int16_t>((c.hears ? POLLIN : 0) | (c.waiting.empty() ? 0 : POLLOUT)),
                           .revents = 0});
    poll(watched.data(), watched.size(), static_cast<int>(time.count()));
    for (auto c = connections_.begin(); c != connections_.end();) c = serve(*c) ? std::next(c) : connections_.erase(c);
    if (Clock::now() >= accepts_from_) accept();
}

// The oldest connection that has not asked yet gives way to a new one: silent connections cannot take all places.
void Server::accept() {
    for (size_t n = 0; n < bounds_.connections; ++n) {
        Socket socket = comm::tcp::accept_from(listener_);
        if (!socket.open()) {
            if (comm::tcp::out_of_descriptors()) accepts_from_ = Clock::now() + kAcceptPause;
            return;
        }
        if (connections_.size() >= bounds_.connections) {
            const auto silent =
                std::find_if(connections_.begin(), connections_.end(), [](const Connection& c) { return !c.answered; });
            if (silent == connections_.end()) {
                comm::tcp::send_some(socket,
                                     to_bytes({.status = 503, .body = "too many readers\n", .fields = {}}, false));
                continue;
            }
            connections_.erase(silent);
        }
        connections_.push_back({.socket = std::move(socket), .received = {}, .waiting = {}, .stream = {}});
    }
}

bool Server::serve(Connection& c) {
    const comm::tcp::ReceivedBytes arrived = comm::tcp::receive_some(c.socket, kMostReceived);
    c.hears = c.hears && !arrived.ended;
    // A reader may end its side behind the request, and read on.
    if (!c.hears && (c.stream || c.over)) return false;
    if (!c.answered) {
        c.received += arrived.bytes;
        const Received first = receive(c.received);
        if (first.state == Received::State::incomplete) return c.hears && Clock::now() - c.since < bounds_.request;
        c.answered = true;
        c.since = Clock::now();
        c.received.clear();
        if (first.state == Received::State::refused) {
            Response response{.status = first.status, .body = first.reason + "\n", .fields = {}};
            if (first.status == 405) response.fields.emplace_back("Allow", "GET, HEAD");
            c.waiting = to_bytes(response, false);
        } else {
            Answer answer = answer_(first.request);
            if (const auto* response = std::get_if<Response>(&answer)) {
                c.waiting = to_bytes(*response, first.request.head);
            } else {
                c.waiting = head_of_stream();
                if (!first.request.head) c.stream = std::move(std::get<std::unique_ptr<Stream>>(answer));
                if (c.stream) c.waiting += c.stream->next();
            }
        }
    }
    return send(c);
}

bool Server::send(Connection& c) {
    if (!c.waiting.empty()) {
        const auto sent = comm::tcp::send_some(c.socket, c.waiting);
        if (!sent) return false;
        if (*sent > 0) c.since = Clock::now();
        c.waiting.erase(0, *sent);
    }
    if (!c.waiting.empty()) return Clock::now() - c.since < bounds_.no_reader;
    if (c.stream) return true;
    // Closing at once would throw away what the reader has not taken yet, if it has sent more than was read.
    if (!std::exchange(c.over, true)) comm::tcp::end_sending(c.socket);
    return c.hears && Clock::now() - c.since < kLinger;
}

void Server::advance() {
    for (auto c = connections_.begin(); c != connections_.end();) {
        if (c->stream && c->waiting.empty()) {
            c->waiting = c->stream->next();
            if (c->waiting.empty() && Clock::now() - c->since > bounds_.quiet) c->waiting = ": still here\n\n";
        }
        c = !c->stream || send(*c) ? std::next(c) : connections_.erase(c);
    }
}

void Server::end(const std::string& last) {
    for (Connection& c : connections_) {
        if (!c.stream || !c.waiting.empty()) continue;
        comm::tcp::send_some(c.socket, last);
        comm::tcp::end_sending(c.socket);
    }
    connections_.clear();
}

std::string Access::fresh_token() { return comm::tcp::fresh_hex().substr(0, 32); }

std::optional<Response> Access::refuse(const Request& request) const {
    if (token_.empty()) {
        const std::string host = host_of(request.field("host"));
        if (host.empty() || comm::tcp::is_loopback(host)) return std::nullopt;
        return Response{
            .status = 421, .body = "this server answers under localhost and loopback addresses alone\n", .fields = {}};
    }
    if (is_same(request.cookie("tutti"), token_) || is_same(request.field("authorization"), "Bearer " + token_))
        return std::nullopt;
    if (is_same(request.parameter("token"), token_))
        return Response{.status = 303,
                        .body = {},
                        .fields = {{"Location", "/"},
                                   {"Set-Cookie", concat("tutti=", token_, "; HttpOnly; SameSite=Strict; Path=/")}}};
    return Response{.status = 403,
                    .body =
                        "a token is required: open the URL that `tutti watch` has printed, or send "
                        "`Authorization: Bearer TOKEN`\n",
                    .fields = {}};
}

}  // namespace tutti::http
