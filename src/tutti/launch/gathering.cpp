#include "tutti/launch/gathering.h"

#include <poll.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/launch/agent.h"
#include "tutti/launch/process.h"
#include "tutti/launch/verdict.h"

namespace tutti::launch {

using comm::tcp::Key;
using comm::tcp::Meeting;
using comm::tcp::Session;
using comm::tcp::Socket;
using comm::tcp::StrangerLimits;
using exit_codes::kBecauseOfOthers, exit_codes::kPreempted;

namespace {

constexpr std::chrono::seconds kAnswer{5};  // to an introduction
constexpr std::chrono::seconds kConnection{2};
constexpr std::chrono::milliseconds kBetweenCalls{250};
constexpr std::chrono::seconds kPatience{3};  // a wait of so long is said
constexpr std::chrono::seconds kAfterRejection{2};

std::string label_of(const Gathering& gathering) {
    return concat("tutti agents of ", gathering.meeting.job, ' ', gathering.label);
}

std::optional<Key> key_of(const Gathering& gathering, std::string& why) {
    const auto key = gathering.meeting.secret.key(why);
    check<UsageError>(key != Key{}, "agents of `tutti launch` (", gathering.evidence,
                      ") run what the launcher says, and need a secret that strangers do not know; comm.secret or "
                      "TUTTI_SECRET is \"none\". Remove it, and ",
                      comm::tcp::kSecretFile, " of the run directory serves");
    return key;
}

Socket listen(const Meeting& meeting, int port) {
    return meeting.one_host ? comm::tcp::listen_locally(meeting.local_name(port))
                            : comm::tcp::listen_on(comm::tcp::is_loopback(meeting.host), port);
}

}  // namespace

Entrance::Entrance(const Gathering& gathering) : gathering_(gathering) {
    const Meeting& meeting = gathering_.meeting;
    meeting.secret.make();
    std::string why;
    const auto key = key_of(gathering_, why);
    check(key.has_value(), why);
    key_ = *key;
    for (int port = meeting.port; port < meeting.port + meeting.ports; ++port) {
        Socket listener = listen(meeting, port);
        if (!listener.open()) continue;
        door_ = comm::tcp::reception(std::move(listener), StrangerLimits::of(gathering_.agents, 60));
        return;
    }
    throw Error(concat("the launcher cannot listen for agents at ", meeting.place(), ": ", std::strerror(errno)));
}

std::string Entrance::own_address() const {
    return gathering_.meeting.one_host ? "127.0.0.1" : gathering_.meeting.host;
}

std::vector<Entrance::Guest> Entrance::look() {
    std::vector<Guest> guests;
    for (comm::tcp::Door::Visitor& visitor : door_.look()) {
        auto session = comm::tcp::admit(std::move(visitor), key_, label_of(gathering_));
        if (!session || session->number < 1 || session->number >= gathering_.agents) continue;
        std::string address = comm::tcp::address_of_peer(session->socket);
        if (address.empty() || comm::tcp::is_loopback(address)) address = own_address();  // it is on this machine
        const int number = session->number;
        guests.push_back({number, address, Link(std::move(*session), Link::End::listener)});
    }
    return guests;
}

namespace {

class Caller {
  public:
    Caller(const Gathering& gathering, std::ostream& err) : gathering_(gathering), err_(err) {}

    int attend() {
        for (;;) {
            auto link = find();
            if (!link) return code_;
            has_served_ = true;
            const auto begin = Clock::now();
            if (const auto bye = serve(std::move(*link))) {
                if (!bye->why.empty()) say(bye->why);
                return bye->code;
            }
            const bool was_brief =
                Clock::now() - begin < kPatience;  // the launcher does not want this host for a while
            if (!was_brief) say("the connection to the launcher is lost, and the ranks here have ended; trying again");
            if (was_brief) std::this_thread::sleep_for(kAfterRejection);
        }
    }

  private:
    // Nothing, with the reason in code_, when there is none to be found.
    std::optional<Link> find() {
        const SignalDescriptor signals(kStopSignals);
        const auto begin = Clock::now();
        auto unrefused = begin;  // the last time that the machine did not refuse
        for (bool told = false;;) {
            for (int port = gathering_.meeting.port; port < gathering_.meeting.port + gathering_.meeting.ports; ++port)
                if (signals.next()) {
                    code_ = kPreempted;
                    return std::nullopt;
                } else if (auto link = call(port)) {
                    return link;
                }
            const auto now = Clock::now();
            if (!refused_) unrefused = now;
            const std::string what = concat("the launcher at ", gathering_.meeting.place(), " has not answered agent ",
                                            gathering_.number, " of ", gathering_.agents, ": ", why_);
            const bool ended = has_served_ && now - unrefused > seconds(gathering_.silence_s);
            if (ended || now - begin > kWaitForOthers) {
                say(ended ? concat("the launcher has ended: ", why_)
                          : concat(what, "; this agent ends after ", kWaitForOthers.count(), " min"));
                code_ = kBecauseOfOthers;
                return std::nullopt;
            }
            if (!told && now - begin > kPatience) {
                say(concat(what, "; waiting for up to ", kWaitForOthers.count(), " min"));
                told = true;
            }
            pollfd signal{.fd = signals.fd(), .events = POLLIN, .revents = 0};
            poll(&signal, 1, static_cast<int>(kBetweenCalls.count()));
        }
    }

    std::optional<Link> call(int port) {
        const Meeting& meeting = gathering_.meeting;
        std::string why;
        const auto key = key_of(gathering_, why);
        const auto until = Clock::now() + kConnection;
        Socket socket;
        if (key)
            socket = meeting.one_host ? comm::tcp::connect_locally(meeting.local_name(port), until, why)
                                      : comm::tcp::connect_to(meeting.host, port, until, why);
        const bool has_answered = socket.open();
        if (port == meeting.port) refused_ = true;
        refused_ = refused_ && !has_answered && why.ends_with(std::strerror(ECONNREFUSED));
        if (has_answered) {
            try {
                return Link(comm::tcp::introduce(std::move(socket), *key, label_of(gathering_), gathering_.number,
                                                 concat("what listens at port ", port), kAnswer),
                            Link::End::caller);
            } catch (const DataError& error) {
                why = error.what();
            }
        }
        if (port == meeting.port || has_answered) why_ = why;
        return std::nullopt;
    }

    void say(const std::string& text) {
        err_ << "tutti launch, agent " << gathering_.number << ": " << text << std::endl;
    }

    const Gathering& gathering_;
    std::ostream& err_;
    std::string why_;
    bool refused_ = false;  // by all ports: the machine is there, and no launcher
    bool has_served_ = false;
    int code_ = kBecauseOfOthers;
};

}  // namespace

int attend(const Gathering& gathering, std::ostream& err) {
    const SignalDescriptor signals(kStopSignals);  // blocked between two servings too
    return Caller(gathering, err).attend();
}

}  // namespace tutti::launch
