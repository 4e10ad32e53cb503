// launch/host.h: a host of a launch: the connection to its agent, which a child process or ssh starts or which connects
// to the launcher, and the agent's last reports.
#pragma once

#include <string>
#include <vector>

#include "tutti/launch/agent.h"
#include "tutti/launch/hosts.h"
#include "tutti/launch/process.h"

namespace tutti::launch {

class Host {
  public:
    enum class State { away, connecting, ready };

    // `words`: the command that starts the agent; none: the agent connects to the launcher. `direct`: the agent is a
    // child of this process, so that its ranks end when it does. `open_copies`: the body of that frame; "": no copies.
    Host(HostLine host, std::vector<std::string> words, bool direct, std::string open_copies)
        : line_(std::move(host)), words_(std::move(words)), direct_(direct), open_copies_(std::move(open_copies)) {}

    const HostLine& line() const { return line_; }
    void set_name(const std::string& name) { line_.name = name; }
    State state() const { return state_; }
    bool is_ready() const { return state_ == State::ready; }
    Clock::time_point since() const { return since_; }  // of the state
    const std::string& why() const { return why_; }     // the host is away
    // When the last rank of a lost agent must have ended. A new agent on the host waits for their end by itself.
    Clock::time_point unsafe_until() const { return is_ready() ? Clock::time_point() : unsafe_until_; }

    // Where its agent stores copies; "" and 0: nowhere.
    const std::string& copies() const { return copies_; }
    int port_of_copies() const { return port_; }
    int64_t copied_step() const { return copied_step_; }  // the newest step of its ranks' copies, in any generation

    void connect();
    bool connects_itself() const { return words_.empty(); }
    bool may_connect() const { return !connects_itself() && may_retry(); }
    bool may_retry() const { return state_ == State::away && Clock::now() >= retry_at_; }
    // Takes the connection of an agent, and the address at which other hosts reach it.
    void admit(Link link, const std::string& address);
    const std::string& own_name() const { return own_name_; }  // of the hello frame; "" before it
    // Frames that have arrived, except hello and ping. Becomes `away` when the link or its process ends, or is silent.
    std::vector<Frame> turn(double silence_s);
    void send(Frame::Type type, std::string_view body) { link_.send(type, body); }
    void lose(const std::string& why, double silence_s);
    void dismiss(int code);  // lets the agent end; one that has connected to the launcher ends with this code
    bool has_ended();
    void retry_after(std::chrono::seconds time) { retry_at_ = Clock::now() + time; }
    std::string take_lines();  // whole lines that ssh or the agent has written to standard error

    // Descriptors to wait for, as {descriptor, for writing}.
    std::vector<std::pair<int, bool>> watched() const;

  private:
    void begin(Link link);
    void receive_hello(const Frame& hello, double silence_s);
    void receive_copies_opened(const Frame& opened);
    void become_ready();

    HostLine line_;
    std::vector<std::string> words_;
    bool direct_ = false;
    std::string open_copies_, copies_, own_name_;
    int port_ = 0;
    int64_t copied_step_ = 0;
    State state_ = State::away;
    Process agent_;
    Link link_;
    std::string errors_, last_line_;  // of standard error
    std::string why_ = "not connected yet";
    Clock::time_point since_ = Clock::now(), retry_at_{}, unsafe_until_{}, pinged_{};
};

}  // namespace tutti::launch
