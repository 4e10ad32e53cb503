#include "tutti/launch/agent_listener.h"

#include <poll.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/launch/agent.h"
#include "tutti/launch/process.h"

namespace tutti::launch {

using comm::tcp::AuthenticatedSession;
using comm::tcp::Key;
using comm::tcp::PendingLimits;
using comm::tcp::Rendezvous;
using comm::tcp::Socket;
using exit_codes::kBecauseOfOthers, exit_codes::kPreempted;

namespace {

constexpr std::chrono::seconds kAnswer{5};  // to a handshake
constexpr std::chrono::seconds kConnection{2};
constexpr std::chrono::milliseconds kBetweenAttempts{250};
constexpr std::chrono::seconds kLongWait{3};  // a longer wait is reported
constexpr std::chrono::seconds kAfterRejection{2};

std::string label_of(const AgentGroup& group) {
    return concat("tutti agents of ", group.rendezvous.job, ' ', group.label);
}

std::optional<Key> key_of(const AgentGroup& group, std::string& why) {
    const auto key = group.rendezvous.secret.key(why);
    check<UsageError>(key != Key{}, "agents of `tutti launch` (", group.evidence,
                      ") run what the launcher says, and need a shared secret; comm.secret or "
                      "TUTTI_SECRET is \"none\". Remove it, and ",
                      comm::tcp::kSecretFile, " of the run directory serves");
    return key;
}

Socket listen(const Rendezvous& rendezvous, int port) {
    return rendezvous.one_host ? comm::tcp::listen_locally(rendezvous.local_name(port))
                               : comm::tcp::listen_on(comm::tcp::is_loopback(rendezvous.host), port);
}

}  // namespace

AgentListener::AgentListener(const AgentGroup& group) : group_(group) {
    const Rendezvous& rendezvous = group_.rendezvous;
    rendezvous.secret.make();
    std::string why;
    const auto key = key_of(group_, why);
    check(key.has_value(), why);
    key_ = *key;
    for (int port = rendezvous.port; port < rendezvous.port + rendezvous.ports; ++port) {
        Socket listener = listen(rendezvous, port);
        if (!listener.open()) continue;
        listener_ = comm::tcp::handshake_listener(std::move(listener), PendingLimits::of(group_.agents, 60));
        return;
    }
    throw Error(concat("the launcher cannot listen for agents at ", rendezvous.text(), ": ", std::strerror(errno)));
}

std::string AgentListener::own_address() const {
    return group_.rendezvous.one_host ? "127.0.0.1" : group_.rendezvous.host;
}

std::vector<AgentListener::Agent> AgentListener::accept() {
    std::vector<Agent> agents;
    for (comm::tcp::Listener::Connection& connection : listener_.accept()) {
        auto session = comm::tcp::accept_handshake(std::move(connection), key_, label_of(group_));
        if (!session || session->number < 1 || session->number >= group_.agents) continue;
        std::string address = comm::tcp::address_of_peer(session->socket);
        if (address.empty() || comm::tcp::is_loopback(address)) address = own_address();  // it is on this machine
        const int number = session->number;
        agents.push_back({number, address, Link(std::move(*session), Link::End::listener)});
    }
    return agents;
}

namespace {

class AgentClient {
  public:
    AgentClient(const AgentGroup& group, std::ostream& err) : group_(group), err_(err) {}

    int serve_launcher() {
        for (;;) {
            auto link = connect();
            if (!link) return code_;
            has_served_ = true;
            const auto begin = Clock::now();
            if (const auto bye = serve(std::move(*link))) {
                if (!bye->why.empty()) report(bye->why);
                return bye->code;
            }
            if (Clock::now() - begin < kLongWait)  // the launcher does not want this host for a while
                std::this_thread::sleep_for(kAfterRejection);
            else
                report("the connection to the launcher is lost, and the ranks here have ended; trying again");
        }
    }

  private:
    // Nothing, with the exit code in code_, after a stop signal or without a launcher.
    std::optional<Link> connect() {
        const SignalDescriptor signals(kStopSignals);
        const auto begin = Clock::now();
        auto not_refused_at = begin;  // the last attempt that was not refused on all ports
        for (bool reported = false;;) {
            for (int port = group_.rendezvous.port; port < group_.rendezvous.port + group_.rendezvous.ports; ++port)
                if (signals.next()) {
                    code_ = kPreempted;
                    return std::nullopt;
                } else if (auto link = try_port(port)) {
                    return link;
                }
            const auto now = Clock::now();
            if (!refused_) not_refused_at = now;
            const std::string what = concat("the launcher at ", group_.rendezvous.text(), " has not answered agent ",
                                            group_.number, " of ", group_.agents, ": ", why_);
            const bool ended = has_served_ && now - not_refused_at > seconds(group_.silence_s);
            if (ended || now - begin > kWaitForOthers) {
                report(ended ? concat("the launcher has ended: ", why_)
                             : concat(what, "; this agent ends after ", kWaitForOthers.count(), " min"));
                code_ = kBecauseOfOthers;
                return std::nullopt;
            }
            if (!reported && now - begin > kLongWait) {
                report(concat(what, "; waiting for up to ", kWaitForOthers.count(), " min"));
                reported = true;
            }
            pollfd signal{.fd = signals.fd(), .events = POLLIN, .revents = 0};
            poll(&signal, 1, static_cast<int>(kBetweenAttempts.count()));
        }
    }

    std::optional<Link> try_port(int port) {
        const Rendezvous& rendezvous = group_.rendezvous;
        std::string why;
        const auto key = key_of(group_, why);
        const auto until = Clock::now() + kConnection;
        Socket socket;
        if (key)
            socket = rendezvous.one_host ? comm::tcp::connect_locally(rendezvous.local_name(port), until, why)
                                         : comm::tcp::connect_to(rendezvous.host, port, until, why);
        const bool has_answered = socket.open();
        if (port == rendezvous.port) refused_ = true;
        refused_ = refused_ && !has_answered && why.ends_with(std::strerror(ECONNREFUSED));
        if (has_answered) {
            try {
                return Link(comm::tcp::start_handshake(std::move(socket), *key, label_of(group_), group_.number,
                                                       concat("what listens at port ", port), kAnswer),
                            Link::End::caller);
            } catch (const DataError& error) {
                why = error.what();
            }
        }
        if (port == rendezvous.port || has_answered) why_ = why;
        return std::nullopt;
    }

    void report(const std::string& text) {
        err_ << "tutti launch, agent " << group_.number << ": " << text << std::endl;
    }

    const AgentGroup& group_;
    std::ostream& err_;
    std::string why_;
    bool refused_ = false;  // by all ports: the machine is up and runs no launcher
    bool has_served_ = false;
    int code_ = kBecauseOfOthers;
};

}  // namespace

int serve_launcher(const AgentGroup& group, std::ostream& err) {
    const SignalDescriptor signals(kStopSignals);  // blocked between two connections too
    return AgentClient(group, err).serve_launcher();
}

}  // namespace tutti::launch
