#include "tutti/comm/tcp/tcp_wire.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "tutti/base/ceil_div.h"
#include "tutti/base/error.h"
#include "tutti/base/refused.h"
#include "tutti/base/to_size.h"
#include "tutti/comm/processes/process_world.h"
#include "tutti/comm/progress.h"

namespace tutti::comm::tcp {

namespace {

constexpr int64_t kEager = 32 << 10;
constexpr int64_t kPage = 4096;
constexpr double kConnectShare = 0.9;  // of the time-out, for a connection

}  // namespace

// --- memory of the host ----------------------------------------------------------------------------------------------

// The memory of the host's first rank. The others open it through that process, so that nothing is left behind if all
// are killed.
std::byte* TcpWire::share(int64_t bytes) {
    const int first = topology_.locals.front();
    const auto counters = round_up(static_cast<int64_t>(topology_.locals.size() * sizeof(uint32_t)), kPage);
    window_bytes_ = counters + bytes;
    const Contact& contact = contacts_[to_size(first)];
    const std::string path = concat("/proc/", contact.process, "/fd/", contact.memory);
    if (first == topology_.rank) {
        const int error = ftruncate(memory_.fd(), window_bytes_) == 0 ? 0 : errno;
        check(error == 0, name_of(first), " cannot allocate ", bytes, " bytes of shared memory for the ",
              topology_.locals.size(), " ranks of its host: ", std::strerror(error),
              error == EFBIG ? " (it counts as a file: ulimit -f unlimited)" : "");
    } else {
        memory_ = Socket(::open(path.c_str(), O_RDWR | O_CLOEXEC));
        const int error = errno;
        if (!memory_.open())
            if (const auto reason = abort_received()) throw_reason(*reason);
        check(memory_.open(), "rank ", topology_.rank, " cannot open the memory of rank ", first, " (", path,
              "): ", std::strerror(error),
              error == ENOENT ? "; that rank has ended, or is in another container"
                              : "; all ranks of a host must belong to one user");
    }
    struct stat status {};
    AwakeTime waited(timeout_s_);
    while (fstat(memory_.fd(), &status) == 0 && status.st_size < window_bytes_) {
        check<TimedOut>(waited.passed() < timeout_s_, "rank ", first,
                        " has not allocated the shared memory of its host within ", timeout_s_, " s (comm.timeout_s)");
        if (const auto reason = abort_received()) throw_reason(*reason);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    void* address = mmap(nullptr, to_size(window_bytes_), PROT_READ | PROT_WRITE, MAP_SHARED, memory_.fd(), 0);
    if (address == MAP_FAILED)
        throw_refused(concat("rank ", topology_.rank, " cannot map ", window_bytes_, " bytes of shared memory"), errno);
    window_ = static_cast<std::byte*>(address);
    return window_ + counters;
}

void TcpWire::barrier_of_host() {
    auto* counters = reinterpret_cast<std::atomic<uint32_t>*>(window_);
    ++barriers_;
    AwakeTime waited(timeout_s_);
    for (size_t i = 0; i < topology_.locals.size(); ++i)
        if (topology_.locals[i] == topology_.rank) counters[i] = barriers_;
    for (size_t i = 0; i < topology_.locals.size(); ++i)
        while (counters[i] < barriers_) {
            check<TimedOut>(waited.passed() < timeout_s_, "rank ", topology_.locals[i], " has not started within ",
                            timeout_s_, " s (comm.timeout_s)");
            if (const auto reason = abort_received()) throw_reason(*reason);
            std::this_thread::sleep_for(std::chrono::microseconds(200));
        }
}

// --- messages --------------------------------------------------------------------------------------------------------

std::string TcpWire::name_of(int rank) const {
    return concat("rank ", rank, " on host ", topology_.host_names[to_size(rank)]);
}

TcpWire::Request TcpWire::new_request() {
    if (free_.empty()) {
        free_.push_back(static_cast<Request>(complete_.size()));
        complete_.push_back(false);
    }
    const Request request = free_.back();
    free_.pop_back();
    complete_[to_size(request)] = false;
    ++pending_;
    return request;
}

void TcpWire::finish(Request request) { complete_[to_size(request)] = true; }

// A rank on the hub's host may have connected over the loopback address; others reach it at the hub's address.
std::string TcpWire::address_of(int rank) const {
    const std::string seen = contacts_[to_size(rank)].address.data();
    return is_loopback(seen) ? rendezvous_address_ : seen;
}

std::string TcpWire::full_address_of(int rank) const {
    return rendezvous_.one_host ? concat("the local socket ", contacts_[to_size(rank)].address.data())
                                : concat(address_of(rank), ":", contacts_[to_size(rank)].port);
}

void TcpWire::connect_peer(int to) {
    Peer& peer = peers_[to_size(to)];
    const Contact& contact = contacts_[to_size(to)];
    std::string why;
    peer.got = 0;
    peer.out = rendezvous_.one_host
                   ? connect_locally(contact.address.data(), Clock::now() + std::chrono::seconds(5), why)
                   : begin_connection(address_of(to), contact.port, why);
    if (!peer.out.open()) cannot_connect(to, why);
    // Before the time-out of the operation that sends the message, whose error would not name the cause.
    peer.connecting = AwakeTime(kConnectShare * timeout_s_);
}

// Whether the link is connected and the challenge has arrived; the hello is then the first message of the queue.
bool TcpWire::is_connected(int to) {
    Peer& peer = peers_[to_size(to)];
    if (peer.is_connected) return true;
    const auto outcome = outcome_of(peer.out);
    if (outcome && !outcome->empty()) cannot_connect(to, *outcome);
    if (outcome) {
        const ssize_t n =
            recv(peer.out.fd(), peer.challenge.data() + peer.got, peer.challenge.size() - peer.got, MSG_DONTWAIT);
        // While this rank computed, the other rank closed the connection as one that sends nothing.
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) connect_peer(to);
        peer.got += n > 0 ? to_size(n) : 0;
    }
    if (peer.got < peer.challenge.size()) {
        // A rank that computes accepts the connection when it communicates next; the operation that waits for it has a
        // time-out of its own.
        if (!outcome && peer.connecting.passed() >= kConnectShare * timeout_s_)
            cannot_connect(to, concat("no answer within ", kConnectShare * timeout_s_, " s (", kConnectShare,
                                      " of comm.timeout_s): its host is gone, or unreachable from this one"));
        return false;
    }
    peer.hello.header.tag = topology_.rank;
    peer.hello.proof = proof_of_link(peer.challenge, topology_.rank, to);
    peer.queue.push_front(
        {.header = peer.hello.header, .data = reinterpret_cast<const std::byte*>(peer.hello.proof.data())});
    return peer.is_connected = true;
}

Proof TcpWire::proof_of_link(const Nonce& challenge, int from, int to) const {
    return prove(key_, "tutti hello 1", {bytes_of(challenge), bytes_of(from), bytes_of(to)});
}

void TcpWire::cannot_connect(int to, const std::string& why) {
    fail(concat(name_of(topology_.rank), " cannot connect to ", name_of(to), " at ", full_address_of(to), ": ", why));
}

void TcpWire::push(int to, QueuedMessage message) {
    Peer& peer = peers_[to_size(to)];
    if (!peer.out.open()) connect_peer(to);
    peer.queue.push_back(message);
    flush(to);
}

TcpWire::Request TcpWire::send(const void* data, int64_t bytes, int to, int tag) {
    const std::lock_guard lock(mutex_);
    const Request request = new_request();
    const auto* from = static_cast<const std::byte*>(data);
    if (bytes <= kEager) {
        push(to, {.header = {.kind = HeaderKind::data, .tag = tag, .bytes = bytes}, .data = from, .request = request});
    } else {
        offers_[++last_number_] = {from, bytes, request};
        push(to, {.header = {.kind = HeaderKind::offer, .tag = tag, .bytes = bytes, .number = last_number_}});
    }
    return request;
}

TcpWire::Request TcpWire::receive(void* data, int64_t bytes, int from, int tag) {
    const std::lock_guard lock(mutex_);
    const PostedReceive posted{static_cast<std::byte*>(data), bytes, new_request()};
    Peer& peer = peers_[to_size(from)];
    const auto waiting = peer.unexpected.find(tag);
    if (waiting == peer.unexpected.end()) {
        peer.posted[tag].push_back(posted);
        return posted.request;
    }
    const UnexpectedMessage message = std::move(waiting->second.front());
    waiting->second.pop_front();
    if (waiting->second.empty()) peer.unexpected.erase(waiting);
    check(message.bytes == bytes, "required a message of ", bytes, " bytes from ", name_of(from), ", got one of ",
          message.bytes);
    if (message.offered) {
        grant(from, posted, message.number);
    } else {
        if (bytes > 0) std::memcpy(data, message.data.data(), to_size(bytes));
        finish(posted.request);
    }
    return posted.request;
}

void TcpWire::grant(int from, const PostedReceive& posted, uint64_t offer) {
    granted_[++last_number_] = posted;
    push(from,
         {.header = {
              .kind = HeaderKind::grant, .tag = 0, .bytes = static_cast<int64_t>(last_number_), .number = offer}});
}

bool TcpWire::done(Request request) {
    const std::lock_guard lock(mutex_);
    const auto index = to_size(request);
    if (!complete_[index]) progress();
    if (!complete_[index]) return false;
    free_.push_back(request);
    --pending_;
    ++completed_;
    return true;
}

void TcpWire::progress() {
    for (size_t to = 0; to < peers_.size(); ++to)
        if (!peers_[to].queue.empty()) flush(static_cast<int>(to));
    std::vector<pollfd> watched = {{.fd = listener_.fd(), .events = POLLIN, .revents = 0}};
    for (const IncomingLink& in : incoming_) watched.push_back({.fd = in.socket.fd(), .events = POLLIN, .revents = 0});
    poll(watched.data(), watched.size(), 0);
    for (size_t i = incoming_.size(); i-- > 0;)
        if (watched[i + 1].revents != 0 && !read(incoming_[i]))
            incoming_.erase(incoming_.begin() + static_cast<std::ptrdiff_t>(i));
    if (watched[0].revents == 0 && !listener_.is_overdue()) return;
    for (Listener::Connection& connection : listener_.accept()) admit(std::move(connection));
}

// Keeps the connection if it is a link of a rank of this job.
void TcpWire::admit(Listener::Connection connection) {
    Hello hello;
    std::memcpy(&hello, connection.first.data(), sizeof hello);
    const int from = hello.header.tag;
    if (from < 0 || from >= topology_.size ||
        !is_same(hello.proof, proof_of_link(connection.challenge, from, topology_.rank)))
        return;
    IncomingLink in;
    in.socket = std::move(connection.socket);
    in.from = from;
    incoming_.push_back(std::move(in));
}

void TcpWire::flush(int to) {
    Peer& peer = peers_[to_size(to)];
    if (peer.queue.empty() || !is_connected(to)) return;
    constexpr auto kHead = static_cast<int64_t>(sizeof(Header));
    while (!peer.queue.empty()) {
        QueuedMessage& message = peer.queue.front();
        const int64_t data = message.data != nullptr ? message.header.bytes : 0;
        while (message.sent < kHead + data) {
            std::array<iovec, 2> parts{};
            const int64_t of_head = std::min(message.sent, kHead), of_data = message.sent - of_head;
            parts[0] = {reinterpret_cast<std::byte*>(&message.header) + of_head, to_size(kHead - of_head)};
            parts[1] = {const_cast<std::byte*>(message.data) + of_data, to_size(data - of_data)};
            msghdr all{};
            all.msg_iov = parts.data();
            all.msg_iovlen = data > 0 ? 2 : 1;
            const ssize_t n = sendmsg(peer.out.fd(), &all, MSG_NOSIGNAL | MSG_DONTWAIT);
            if (n < 0 && errno == EINTR) continue;
            if (n < 0 && errno == EAGAIN) return;
            if (n < 0) lost(to, std::strerror(errno));
            message.sent += n;
        }
        if (message.request >= 0) finish(message.request);
        peer.queue.pop_front();
    }
}

bool TcpWire::read(IncomingLink& in) {
    constexpr auto kHead = static_cast<int64_t>(sizeof(Header));
    const auto has_data = [&] { return in.header.kind == HeaderKind::data || in.header.kind == HeaderKind::bulk; };
    while (true) {
        const bool head = in.got < kHead;
        const int64_t end = head ? kHead : kHead + (has_data() ? in.header.bytes : 0);
        if (in.got < end) {
            std::byte* to = head ? reinterpret_cast<std::byte*>(&in.header) + in.got : in.data + (in.got - kHead);
            const ssize_t n = recv(in.socket.fd(), to, to_size(end - in.got), MSG_DONTWAIT);
            if (n < 0 && errno == EINTR) continue;
            if (n < 0 && errno == EAGAIN) return true;
            if (n <= 0) {
                // A rank that has ended closes its links between messages. The hub names a rank that has died.
                if (in.got > 0) lost(in.from, n == 0 ? "it was closed inside a message" : std::strerror(errno));
                return false;
            }
            in.got += n;
            if (in.got < end) continue;
            if (!head) {
                take_message(in);
                in.got = 0;
                continue;
            }
        }
        if (in.header.kind == HeaderKind::hello) return false;  // allowed once
        take_header(in);
        if (!has_data() || in.header.bytes == 0) {
            if (in.header.kind == HeaderKind::data) take_message(in);
            in.got = 0;
        }
    }
}

// Handles a header; if data follow, sets their destination.
void TcpWire::take_header(IncomingLink& in) {
    const Header& h = in.header;
    Peer& peer = peers_[to_size(in.from)];
    in.request = -1;
    if (h.kind == HeaderKind::grant) {
        const auto offer = offers_.find(h.number);
        check(offer != offers_.end(), name_of(in.from), " grants message ", h.number, ", which was not offered");
        push(in.from, {.header = {.kind = HeaderKind::bulk,
                                  .tag = 0,
                                  .bytes = offer->second.bytes,
                                  .number = static_cast<uint64_t>(h.bytes)},
                       .data = offer->second.data,
                       .request = offer->second.request});
        offers_.erase(offer);
        return;
    }
    if (h.kind == HeaderKind::bulk) {
        const auto destination = granted_.find(h.number);
        check(destination != granted_.end() && destination->second.bytes == h.bytes, name_of(in.from), " sends ",
              h.bytes, " bytes as message ", h.number, ", which was not granted");
        in.data = destination->second.data;
        in.request = destination->second.request;
        granted_.erase(destination);
        return;
    }
    if (!peer.posted.contains(h.tag)) {
        if (h.kind == HeaderKind::offer) {
            peer.unexpected[h.tag].push_back({.bytes = h.bytes, .data = {}, .offered = true, .number = h.number});
        } else {
            check(h.bytes >= 0 && h.bytes <= kEager, name_of(in.from), " sends ", h.bytes,
                  " bytes without an offer, required at most ", kEager);
            in.buffer.resize(to_size(h.bytes));
            in.data = in.buffer.data();
        }
        return;
    }
    const PostedReceive destination = take_posted(in);
    if (h.kind == HeaderKind::offer) return grant(in.from, destination, h.number);
    in.data = destination.data;
    in.request = destination.request;
}

TcpWire::PostedReceive TcpWire::take_posted(const IncomingLink& in) {
    auto& posted = peers_[to_size(in.from)].posted;
    const auto queue = posted.find(in.header.tag);
    const PostedReceive destination = queue->second.front();
    queue->second.pop_front();
    if (queue->second.empty()) posted.erase(queue);
    check(destination.bytes == in.header.bytes, "required a message of ", destination.bytes, " bytes from ",
          name_of(in.from), ", got one of ", in.header.bytes);
    return destination;
}

void TcpWire::take_message(IncomingLink& in) {
    if (in.request >= 0) return finish(in.request);
    // A receive may have been posted while the data arrived, before the message was in `unexpected`.
    Peer& peer = peers_[to_size(in.from)];
    if (!peer.posted.contains(in.header.tag)) {
        peer.unexpected[in.header.tag].push_back(
            {.bytes = in.header.bytes, .data = std::move(in.buffer), .offered = false, .number = 0});
        in.buffer = {};
        return;
    }
    const PostedReceive destination = take_posted(in);
    if (destination.bytes > 0) std::memcpy(destination.data, in.buffer.data(), to_size(destination.bytes));
    finish(destination.request);
}

void TcpWire::lost(int peer, const std::string& why) {
    fail(concat("the connection between ", name_of(topology_.rank), " and ", name_of(peer), " is lost: ", why));
}

// The connection may have ended because the other rank failed; then the hub sends the reason within a moment.
void TcpWire::fail(const std::string& error) {
    for (const auto until = Clock::now() + std::chrono::seconds(1); Clock::now() < until;) {
        if (const auto& reason = poll_abort()) throw_reason(*reason);
        readable(control_, until);
    }
    throw Error(error);
}

// --- the end ---------------------------------------------------------------------------------------------------------

void TcpWire::send_abort(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    send_frame(control_, Frame::Type::abort, reason);
}

std::optional<std::string> TcpWire::abort_received() {
    const std::lock_guard lock(mutex_);
    return poll_abort();
}

const std::optional<std::string>& TcpWire::poll_abort() {
    while (const auto frame = control_reader_.read(control_))
        if (frame->type == Frame::Type::abort && !abort_) abort_ = frame->body;
    if (control_reader_.closed() && !abort_)
        abort_ = concat("rank 0 has died: its connection to rank ", topology_.rank, " is closed");
    return abort_;
}

void TcpWire::finalize() {
    const std::lock_guard lock(mutex_);
    send_frame(control_, Frame::Type::bye, "");
    if (hub_) hub_->end();
    hub_.reset();  // waits until all ranks have sent `bye`
}

}  // namespace tutti::comm::tcp

namespace tutti::comm {

void run_tcp(const Launch& launch, const WorldOptions& options, const std::function<void(World&)>& body,
             const AssignedHosts& hosts) {
    tcp::Rendezvous rendezvous = tcp::rendezvous_of(launch, process_environment());
    rendezvous.one_host = rendezvous.one_host && hosts.empty();
    if (rendezvous.one_host)
        rendezvous.ports = 1;  // no other job has this local name
    else
        rendezvous.secret = tcp::Secret(options.secret, options.run_directory, process_environment());
    processes::run_processes(
        "tcp",
        [&] { return std::make_unique<tcp::TcpWire>(launch, rendezvous, options.timeout_s, hosts, options.stop); },
        options, body);
}

}  // namespace tutti::comm
