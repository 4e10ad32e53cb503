#include "tutti/comm/tcp/rendezvous.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "tutti/base/awake_time.h"
#include "tutti/base/digits.h"
#include "tutti/base/error.h"
#include "tutti/base/refused.h"
#include "tutti/base/to_size.h"

namespace tutti::comm::tcp {

namespace {

constexpr int kPorts = 16;

std::string required(const Launch& launch, const Environment& environment, const char* name) {
    const auto text = environment(name);
    check<UsageError>(text && !text->empty(), "ranks started by ", name_of(launch.launcher), " (", launch.evidence,
                      ") connect over TCP, but the variable ", name,
                      " is not set; set it, or TUTTI_RENDEZVOUS=HOST:PORT to the host and a free port of rank 0");
    return *text;
}

int number(const char* name, const std::string& text, int most) {
    const int value = parse_number<int>(text).value_or(-1);
    check<UsageError>(value >= 0 && value <= most, name, " must be a whole number from 0 to ", most, ", got '", text,
                      "'");
    return value;
}

int port_of(const char* name, const std::string& text) {
    const int port = number(name, text, 65535 - kPorts);
    check<UsageError>(port > 0, name, " must be a port above 0, got '", text, "'");
    return port;
}

Rendezvous given(const std::string& text, std::string job) {
    const size_t colon = text.rfind(':');
    check<UsageError>(colon != std::string::npos && colon > 0, "TUTTI_RENDEZVOUS must be HOST:PORT, got '", text, "'");
    std::string host = text.substr(0, colon);
    if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);  // IPv6
    return {.host = host,
            .port = port_of("TUTTI_RENDEZVOUS", text.substr(colon + 1)),
            .job = std::move(job),
            .origin = "TUTTI_RENDEZVOUS",
            .one_host = is_loopback(host)};
}

std::string job_of(const Launch& launch, const Environment& environment) {
    const auto value = [&](const char* name) { return environment(name).value_or(""); };
    switch (launch.launcher) {
        case Launcher::tutti: return concat("tutti ", value("TUTTI_JOB"), '.', value("TUTTI_GENERATION"));
        case Launcher::torchrun:
            return concat("torchrun ", value("TORCHELASTIC_RUN_ID"), '.', value("TORCHELASTIC_RESTART_COUNT"));
        case Launcher::slurm:
            return concat("slurm ", value("SLURM_JOB_ID"), '.', value("SLURM_STEP_ID"), '.',
                          value("SLURM_RESTART_COUNT"));
        default: return std::string(name_of(launch.launcher));
    }
}

}  // namespace

std::string first_host(const std::string& nodes) {
    std::string host;
    for (size_t i = 0; i < nodes.size() && nodes[i] != ','; ++i) {
        if (nodes[i] != '[') {
            host += nodes[i];
            continue;
        }
        const size_t close = nodes.find(']', i), end = nodes.find_first_of("-,]", i + 1);
        check<UsageError>(close != std::string::npos, "the list of nodes '", nodes, "' lacks a ']'");
        host += nodes.substr(i + 1, end - i - 1);
        i = close;
    }
    return host;
}

Rendezvous rendezvous_of(const Launch& launch, const Environment& environment) {
    const std::string job = job_of(launch, environment);
    if (const auto text = environment("TUTTI_RENDEZVOUS"); text && launch.launcher != Launcher::tutti)
        return given(*text, job);
    const auto value = [&](const char* name) { return required(launch, environment, name); };
    switch (launch.launcher) {
        case Launcher::tutti:
            return {.host = value("TUTTI_ADDRESS"),
                    .port = port_of("TUTTI_PORT", value("TUTTI_PORT")),
                    .ports = kPorts,
                    .job = job,
                    .origin = "TUTTI_ADDRESS, TUTTI_PORT",
                    .one_host = launch.local_size == launch.size};
        case Launcher::torchrun:
            // Ranks of one machine need no host name, and open no port to other machines.
            return {.host = launch.local_size == launch.size ? "127.0.0.1" : value("MASTER_ADDR"),
                    .port = port_of("MASTER_PORT", value("MASTER_PORT")) + 1,
                    .ports = kPorts,
                    .job = job,
                    .origin = "MASTER_ADDR, MASTER_PORT + 1",
                    .one_host = launch.local_size == launch.size};
        case Launcher::environment:
            return {.host = value("MASTER_ADDR"),
                    .port = port_of("MASTER_PORT", value("MASTER_PORT")),
                    .job = job,
                    .origin = "MASTER_ADDR, MASTER_PORT",
                    .one_host = is_loopback(value("MASTER_ADDR"))};
        case Launcher::slurm: {
            const char* nodes = environment("SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST";
            const auto id = number("SLURM_JOB_ID", value("SLURM_JOB_ID"), 2147483647);
            const auto step = number("SLURM_STEP_ID", environment("SLURM_STEP_ID").value_or("0"), 2147483647);
            // Below the ephemeral ports of Linux (32768 and up).
            return {.host = first_host(value(nodes)),
                    .port = 15000 + static_cast<int>((int64_t{id} * 64 + step % 64) % 1000) * kPorts,
                    .ports = kPorts,
                    .job = job,
                    .origin = concat(nodes, ", SLURM_JOB_ID"),
                    .one_host = value(nodes).find_first_of(",[") == std::string::npos};
        }
        default: break;
    }
    throw UsageError(
        concat("ranks started by ", name_of(launch.launcher), " (", launch.evidence,
               ") can connect over TCP only at TUTTI_RENDEZVOUS=HOST:PORT, the host and a free port of rank "
               "0, which is not set"));
}

std::string Rendezvous::local_name(int at) const {
    const Proof of_job = prove({}, "tutti local name 1", {job});
    return concat("tutti-", geteuid(), "-", at, "-", to_hex(std::span(of_job).first(8)));
}

std::string Rendezvous::text() const {
    if (one_host) return concat("the local socket ", local_name(port), " (", origin, ")");
    return concat(host, ":", port, ports > 1 ? concat(" to ", port + ports - 1) : "", " (", origin, ")");
}

// ---- the first frames ----

namespace {

template <size_t N>
std::string text_of(const std::array<char, N>& text) {
    return {text.data(), strnlen(text.data(), N)};
}

Proof proof_of(const Join& join, const Key& key, const Nonce& challenge) {
    return prove(key, "tutti join 1", {bytes_of(challenge), bytes_of(join.nonce), bytes_of(join.contact)});
}

Proof proof_of_answer(const Key& key, const Nonce& challenge, const Nonce& nonce, Frame::Type type,
                      std::string_view text) {
    return prove(key, "tutti answer 1", {bytes_of(nonce), bytes_of(challenge), bytes_of(type), text});
}

}  // namespace

Join make_join(const Key& key, const Nonce& challenge, const Contact& contact) {
    Join join{.nonce = fresh_nonce(), .contact = contact};
    join.proof = proof_of(join, key, challenge);
    return join;
}

std::optional<Join> read_join(std::string_view bytes, const Key& key, const Nonce& challenge, std::string_view job) {
    Join join;
    if (bytes.size() != sizeof join) return std::nullopt;
    std::memcpy(&join, bytes.data(), sizeof join);
    if (!is_same(join.proof, proof_of(join, key, challenge))) return std::nullopt;
    Contact& contact = join.contact;
    // Another version, or a rank of another job, which will try the next port.
    if (text_of(contact.magic) != kMagic || text_of(contact.job) != job) return std::nullopt;
    contact.memory_space.back() = contact.host.back() = contact.address.back() = '\0';  // read as C strings
    return join;
}

std::string make_answer(const Key& key, const Nonce& challenge, const Nonce& nonce, Frame::Type type,
                        std::string_view text) {
    return std::string(bytes_of(proof_of_answer(key, challenge, nonce, type, text))).append(text);
}

std::optional<std::string> read_answer(std::string_view bytes, const Key& key, const Nonce& challenge,
                                       const Nonce& nonce, Frame::Type type) {
    Proof proof;
    if (bytes.size() < proof.size()) return std::nullopt;
    std::memcpy(proof.data(), bytes.data(), proof.size());
    const std::string_view text = bytes.substr(proof.size());
    if (!is_same(proof, proof_of_answer(key, challenge, nonce, type, text))) return std::nullopt;
    return std::string(text);
}

// ---- the hub ----

namespace {

constexpr int kPollMs = 50;  // between checks whether the thread must end

// A join, which has a fixed size.
FirstMessage first_frame() {
    const std::string frame = to_bytes(Frame::Type::join, std::string(sizeof(Join), '\0'));
    return {.head = frame.substr(0, frame.size() - sizeof(Join)), .bytes = frame.size()};
}

}  // namespace

Hub::Hub(const Rendezvous& rendezvous, int size, double timeout_s)
    : rendezvous_(rendezvous), size_(size), timeout_s_(timeout_s), contacts_(to_size(size)) {
    rendezvous_.secret.make();
    std::string why;
    const std::optional<Key> key = rendezvous_.secret.key(why);
    check(key.has_value(), why);
    key_ = *key;
    Socket listener;
    for (int port = rendezvous.port; !listener.open() && port < rendezvous.port + rendezvous.ports; ++port)
        listener = rendezvous.one_host ? listen_locally(rendezvous.local_name(port))
                                       : listen_on(is_loopback(rendezvous.host), port);
    check(listener.open(), "rank 0 cannot listen at ", rendezvous.text(),
          ", the rendezvous of the ranks; if another program listens there, set TUTTI_RENDEZVOUS=HOST:PORT");
    listener_ = Listener(std::move(listener), PendingLimits::of(size, timeout_s), first_frame(),
                         [](const Nonce& challenge) { return to_bytes(Frame::Type::challenge, bytes_of(challenge)); });
    thread_ = start_thread("connects the ranks", [this] { run(); });
}

Hub::~Hub() {
    AwakeTime waited(timeout_s_);
    if (!ending_) stopping_ = true;
    while (!stopping_ && thread_.joinable() && waited.passed() < timeout_s_ && !all_gone_)
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    stopping_ = true;
    thread_.join();
}

void Hub::run() {
    AwakeTime waited(timeout_s_);
    while (!stopping_) {
        handle_events();
        if (!running_ && failure_.empty() && joined_ == size_) send_tables();
        if (!running_ && failure_.empty() && waited.passed() > timeout_s_) {
            fail(concat(missing_ranks(), " of ", size_, " ranks did not connect to ", rendezvous_.text(), " within ",
                        timeout_s_, " s (comm.timeout_s): not started, ",
                        rendezvous_.one_host ? "or of another user"
                                             : concat("without a route to that address, or without the secret of this "
                                                      "job (",
                                                      rendezvous_.secret.origin(), ")")));
        }
        all_gone_ = running_ && std::all_of(members_.begin(), members_.end(), [](const Member& m) { return m.gone; });
    }
}

void Hub::handle_events() {
    std::vector<pollfd> watched = {{.fd = listener_.fd(), .events = POLLIN, .revents = 0}};
    for (const Member& member : members_)
        watched.push_back({.fd = member.gone ? -1 : member.socket.fd(), .events = POLLIN, .revents = 0});
    poll(watched.data(), watched.size(), kPollMs);
    for (size_t i = 0; i + 1 < watched.size(); ++i)
        if (watched[i + 1].revents != 0) receive(members_[i]);
    for (Listener::Connection& connection : listener_.accept()) admit(std::move(connection));
}

void Hub::receive(Member& member) {
    while (!member.gone) {
        const auto frame = member.reader.read(member.socket);
        if (!frame) break;
        if (frame->type == Frame::Type::bye)
            member.gone = true;
        else if (frame->type == Frame::Type::abort)
            fail(frame->body, member.rank);
    }
    if (!member.reader.closed() || member.gone) return;
    member.gone = true;
    if (!failure_.empty()) return;
    const Contact& contact = contacts_[to_size(member.rank)];
    fail(concat("rank ", member.rank, " has died: its process on host ", text_of(contact.host),
                " was killed, or ended in the middle of the run"),
         member.rank);
}

bool Hub::answer(Member& member, Frame::Type type, std::string_view text) const {
    return send_frame(member.socket, type, make_answer(key_, member.challenge, member.nonce, type, text));
}

std::string Hub::refusal_of(const Contact& contact) const {
    if (contact.size != size_ || contact.rank < 0 || contact.rank >= size_)
        return concat("it was started as rank ", contact.rank, " of ", contact.size, ", rank 0 as one of ", size_,
                      " ranks");
    if (!failure_.empty()) return failure_;
    const Contact& earlier = contacts_[to_size(contact.rank)];
    return earlier.size == 0
               ? ""
               : concat("rank ", contact.rank, " is connected already, from host ", text_of(earlier.host));
}

// Does not answer without a valid proof.
void Hub::admit(Listener::Connection connection) {
    const std::string_view frame = connection.first;
    const auto join = read_join(frame.substr(frame.size() - sizeof(Join)), key_, connection.challenge, rendezvous_.job);
    if (!join) return;
    Contact contact = join->contact;
    Member member{.socket = std::move(connection.socket),
                  .reader = {},
                  .challenge = connection.challenge,
                  .nonce = join->nonce,
                  .rank = contact.rank};
    if (const std::string reason = refusal_of(contact); !reason.empty()) {
        answer(member, Frame::Type::refusal, reason);
        return;
    }
    if (!rendezvous_.one_host) {
        contact.address = {};
        address_of_peer(member.socket).copy(contact.address.data(), contact.address.size() - 1);
    }
    contacts_[to_size(contact.rank)] = contact;
    ++joined_;
    answer(member, Frame::Type::welcome, "");
    members_.push_back(std::move(member));
}

// Sends the contacts of all ranks, after a nonce of this rendezvous, from which the key of links derives (tcp_wire.h).
void Hub::send_tables() {
    running_ = true;
    listener_ = {};  // all ranks have joined: from now on, no other program can connect
    std::string body(bytes_of(fresh_nonce()));
    body.append(reinterpret_cast<const char*>(contacts_.data()), contacts_.size() * sizeof(Contact));
    for (Member& member : members_)
        if (!member.gone) answer(member, Frame::Type::table, body);
}

void Hub::fail(const std::string& reason, int except) {
    if (failure_.empty()) failure_ = reason;
    for (Member& member : members_)
        if (!member.gone && member.rank != except) send_frame(member.socket, Frame::Type::abort, reason);
}

std::string Hub::missing_ranks() const {
    std::string text;
    int count = 0;
    for (int rank = 0; rank < size_; ++rank)
        if (contacts_[to_size(rank)].size == 0 && ++count <= 16) text += concat(text.empty() ? "" : ", ", rank);
    return concat(count == 1 ? "rank " : "ranks ", text, count > 16 ? concat(" and ", count - 16, " more") : "");
}

}  // namespace tutti::comm::tcp
