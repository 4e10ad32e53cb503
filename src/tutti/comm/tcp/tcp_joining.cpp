// comm/tcp/tcp_joining.cpp: the construction of a TcpWire: how a rank finds rank 0, proves that it belongs to the job,
// and receives the addresses of the others.
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/comm/progress.h"
#include "tutti/comm/tcp/tcp_wire.h"

namespace tutti::comm::tcp {

namespace {

// Equal for processes that can open each other's memory: of the same running kernel, PID namespace and user.
std::string memory_space() {
    std::string boot;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
    std::array<char, 64> table{};
    if (readlink("/proc/self/ns/pid", table.data(), table.size() - 1) < 0) table[0] = '\0';
    return concat(boot, ' ', table.data(), ' ', geteuid());
}

template <size_t N>
void put(const std::string& text, std::array<char, N>& into) {
    text.copy(into.data(), N - 1);
}

}  // namespace

TcpWire::TcpWire(const Launch& launch, const Rendezvous& rendezvous, double timeout_s, const std::vector<int>& hosts,
                 const Stop* stop)
    : rendezvous_(rendezvous),
      timeout_s_(timeout_s),
      stop_(stop),
      memory_(memfd_create("tutti", MFD_CLOEXEC)),
      peers_(to_size(launch.size)) {
    check<UsageError>(hosts.empty() || std::ssize(hosts) == launch.size, "hosts are given for ", hosts.size(),
                      " ranks, but there are ", launch.size);
    Socket listener = rendezvous.one_host ? listen_locally("") : listen_on(is_loopback(rendezvous.host), 0);
    check(listener.open(), "rank ", launch.rank, " cannot listen at any ",
          rendezvous.one_host ? "local socket: " : "TCP port: ", std::strerror(errno));
    listener_ = Listener(std::move(listener), PendingLimits::of(launch.size, timeout_s),
                         {.head = std::string(bytes_of(HeaderKind::hello)), .bytes = sizeof(Hello)},
                         [](const Nonce& challenge) { return std::string(bytes_of(challenge)); });
    check(memory_.open(), "rank ", launch.rank, " cannot create shared memory (memfd_create): ", std::strerror(errno));
    if (launch.rank == 0) hub_ = std::make_unique<Hub>(rendezvous, launch.size, timeout_s);
    join(launch, hosts);
}

// Frees this rank's mapping; the memory lives as long as another rank maps it.
TcpWire::~TcpWire() {
    if (window_ != nullptr) munmap(window_, to_size(window_bytes_));
}

// A rank that is asked to stop while the ranks connect tells those that have joined, through rank 0's hub.
void TcpWire::check_stop() {
    if (stop_ == nullptr || stop_->has_to_save() || !stop_->requested()) return;
    if (control_.open() && send_frame(control_, Frame::Type::abort, stop_->reason()))
        std::this_thread::sleep_for(std::chrono::milliseconds(200));  // on rank 0, the hub tells the others meanwhile
    stop_->check();
}

// Whether data arrive before `until`; checks for a stop meanwhile.
bool TcpWire::wait_for_control(Clock::time_point until) {
    for (;;) {
        const auto now = Clock::now();
        if (readable(control_, std::min(until, now + std::chrono::milliseconds(100)))) return true;
        if (now >= until) return false;
        check_stop();
    }
}

Contact TcpWire::own_contact(const Launch& launch, const std::vector<int>& hosts) const {
    Contact contact;
    put(std::string(kMagic), contact.magic);
    contact.rank = launch.rank;
    contact.size = launch.size;
    put(rendezvous_.job, contact.job);
    const std::string host = hosts.empty() ? "" : concat(" host ", hosts[to_size(launch.rank)]);
    put(memory_space() + host, contact.memory_space);
    put(host_name(), contact.host);
    if (rendezvous_.one_host)
        put(local_name_of(listener_.socket()), contact.address);
    else
        contact.port = port_of(listener_.socket());
    contact.process = getpid();
    contact.memory = memory_.fd();
    cpu_set_t cores;
    CPU_ZERO(&cores);
    sched_getaffinity(0, sizeof cores, &cores);
    std::memcpy(contact.cores.data(), &cores, std::min(sizeof cores, sizeof contact.cores));
    return contact;
}

// nullopt if no frame arrives within two seconds: the listener is another program, or another version of this one.
std::optional<Frame> TcpWire::first_answer(Clock::time_point until) {
    constexpr size_t kLongestAnswer = 4096;  // of a peer that has proved nothing
    until = std::min(until, Clock::now() + std::chrono::seconds(2));
    while (!control_reader_.closed()) {
        if (auto frame = control_reader_.read(control_, kLongestAnswer)) return frame;
        if (!wait_for_control(until)) break;
    }
    return std::nullopt;
}

std::optional<std::string> TcpWire::proved(const Frame& answer, Frame::Type type) const {
    if (answer.type != type) return std::nullopt;
    return read_answer(answer.body, key_, challenge_, nonce_, type);
}

bool TcpWire::join_at(int port, const Contact& own, Clock::time_point until, std::string& why) {
    const std::optional<Key> key = rendezvous_.secret.key(why);
    if (!key) return false;
    key_ = *key;
    const auto soon = std::min(until, Clock::now() + std::chrono::seconds(5));
    control_ = rendezvous_.one_host ? connect_locally(rendezvous_.local_name(port), soon, why)
                                    : connect_to(rendezvous_.host, port, soon, why);
    if (!control_.open()) return false;
    control_reader_ = {};
    why = rendezvous_.one_host ? "the process that listens there is not rank 0 of this job"
                               : concat("the process that listens at port ", port,
                                        " is not rank 0 of this job, or has another secret than this rank (",
                                        rendezvous_.secret.origin(), ")");
    const auto challenge = first_answer(until);
    if (!challenge || challenge->type != Frame::Type::challenge || challenge->body.size() != sizeof challenge_)
        return false;
    std::memcpy(challenge_.data(), challenge->body.data(), sizeof challenge_);
    const Join join = make_join(key_, challenge_, own);
    nonce_ = join.nonce;
    if (!send_frame(control_, Frame::Type::join, bytes_of(join))) return false;
    const auto answer = first_answer(until);
    if (!answer) return false;
    if (const auto reason = proved(*answer, Frame::Type::refusal)) {
        if (reason->starts_with(kPreempted)) throw_reason(*reason);
        throw Error(concat("rank 0 at ", rendezvous_.text(), " refuses rank ", own.rank, ": ", *reason));
    }
    return proved(*answer, Frame::Type::welcome).has_value();
}

void TcpWire::join(const Launch& launch, const std::vector<int>& hosts) {
    const Contact own = own_contact(launch, hosts);
    AwakeTime waited(timeout_s_);
    std::string why;
    for (bool has_joined = false; !has_joined;) {
        check_stop();
        check<TimedOut>(waited.passed() < timeout_s_, "rank ", launch.rank, " of ", launch.size,
                        " has not found rank 0 at ", rendezvous_.text(), " within ", timeout_s_,
                        " s (comm.timeout_s): ", why);
        const auto until = Clock::now() + seconds(timeout_s_ / 4);
        for (int port = rendezvous_.port; port < rendezvous_.port + rendezvous_.ports && !has_joined; ++port) {
            std::string of_port;
            has_joined = join_at(port, own, until, of_port);
            if (why.empty() || control_.open()) why = of_port;  // the error of a port that answered says more
        }
        if (!has_joined) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    rendezvous_address_ = address_of_peer(control_);
    // Rank 0 can name the missing ranks, so it must time out first.
    waited = AwakeTime(timeout_s_);
    while (true) {
        const auto frame = control_reader_.read(control_);
        if (frame && frame->type == Frame::Type::table) {
            const auto table = proved(*frame, Frame::Type::table);
            check(table.has_value(), "the table of ranks from ", rendezvous_.text(),
                  " has an invalid proof: it was changed by another program on the network");
            return take_table(*table, launch);
        }
        if (frame && frame->type == Frame::Type::abort) {
            // Rank 0 has found that ranks are missing; the other ranks end because of rank 0.
            check<TimedOut>(launch.rank != 0 || frame->body.starts_with(kPreempted), frame->body);
            throw_reason(frame->body);
        }
        check<Aborted>(!control_reader_.closed(), "rank 0 has died while the ranks connected");
        check<TimedOut>(waited.passed() < timeout_s_ + 5,
                        "rank 0 has not sent the addresses of the ranks for more than ", timeout_s_,
                        " s (comm.timeout_s)");
        wait_for_control(Clock::now() + seconds(timeout_s_ / 8));
    }
}

void TcpWire::take_table(const std::string& body, const Launch& launch) {
    contacts_.resize(to_size(launch.size));
    check(body.size() == sizeof(Nonce) + contacts_.size() * sizeof(Contact), "rank 0 sends a table of ", body.size(),
          " bytes, required ", sizeof(Nonce) + contacts_.size() * sizeof(Contact), " for ", launch.size,
          " ranks; do all ranks run the same version of this program?");
    key_ = prove(key_, "tutti links 1", {std::string_view(body).substr(0, sizeof(Nonce))});
    std::memcpy(contacts_.data(), body.data() + sizeof(Nonce), body.size() - sizeof(Nonce));
    topology_.rank = launch.rank;
    topology_.size = launch.size;
    const Contact& own = contacts_[to_size(launch.rank)];
    std::array<uint64_t, 16> cores{};
    std::map<std::string, int> hosts;
    for (int rank = 0; rank < launch.size; ++rank) {
        const Contact& c = contacts_[to_size(rank)];
        topology_.host_of.push_back(hosts.try_emplace(c.memory_space.data(), rank).first->second);
        topology_.host_names.emplace_back(c.host.data());
        if (c.memory_space != own.memory_space) continue;
        topology_.locals.push_back(rank);
        for (size_t i = 0; i < cores.size(); ++i) cores[i] |= c.cores[i];
    }
    if (std::ssize(topology_.locals) == launch.size) listener_ = {};  // there is no other host
    topology_.cores = 0;
    for (const uint64_t word : cores) topology_.cores += std::popcount(word);
}

}  // namespace tutti::comm::tcp
