// launch/host.h: a host as the launcher sees it: its agent, which a process reaches or which dials in, and what that
// says.
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

    // `words`: the command that starts the agent; none: the agent dials in. With `direct` the agent is a child of this
    // process, and its end is that of its ranks. `open_copies`: the body of that frame to its agent; "":
    // none.
    Host(HostLine host, std::vector<std::string> words, bool direct, std::string open_copies)
        : line_(std::move(host)), words_(std::move(words)), direct_(direct), open_copies_(std::move(open_copies)) {}

    const HostLine& line() const { return line_; }
    void set_name(const std::string& name) { line_.name = name; }
    State state() const { return state_; }
    bool is_ready() const { return state_ == State::ready; }
    Clock::time_point since() const { return since_; }  // of the state
    const std::string& why() const { return why_; }     // it is away
    // No process of a lost agent may live after this. Another agent of the host waits for the end of such processes by
    // itself.
    Clock::time_point unsafe_until() const { return is_ready() ? Clock::time_point() : unsafe_until_; }

    // Where its agent stores copies; "" and 0: nowhere.
    const std::string& copies() const { return copies_; }
    int port_of_copies() const { return port_; }
    int64_t copied_step() const { return copied_step_; }  // the newest that its ranks have copied, in any generation

    void connect();
    bool dials_in() const { return words_.empty(); }
    bool may_connect() const { return !dials_in() && may_retry(); }
    bool may_retry() const { return state_ == State::away && Clock::now() >= retry_at_; }
    // The agent that has dialled in, and where other hosts reach it.
    void admit(Link link, const std::string& address);
    // By the agent's own word; "" before it has said a word.
    const std::string& own_name() const { return own_name_; }
    // Frames that have come, hello and ping apart. Becomes `away` when the link or its process ends, or is silent.
    std::vector<Frame> turn(double silence_s);
    void send(Frame::Type type, std::string_view body) { link_.send(type, body); }
    void lose(const std::string& why, double silence_s);
    // The agent ends by itself, with this code if it has dialled in.
    void dismiss(int code);
    bool has_ended();
    void retry_after(std::chrono::seconds time) { retry_at_ = Clock::now() + time; }
    std::string take_lines();  // whole lines that ssh or the agent has written on standard error

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
