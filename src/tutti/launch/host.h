// launch/host.h: a host as the launcher sees it: the process that reaches its agent, and what it says.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tutti/launch/agent.h"
#include "tutti/launch/hosts.h"
#include "tutti/launch/process.h"

namespace tutti::launch {

class Host {
  public:
    enum class State { away, connecting, ready };

    // `words`: the command that starts the agent. With `direct` the agent is a child of this process, and its end is
    // that of its ranks. `keep`: the body of the keep frame of an agent that is to keep copies; "": none.
    Host(HostLine host, std::vector<std::string> words, bool direct, std::string keep)
        : line(std::move(host)), words_(std::move(words)), direct_(direct), keep_(std::move(keep)) {}

    const HostLine line;
    State state() const { return state_; }
    bool is_ready() const { return state_ == State::ready; }
    Clock::time_point since() const { return since_; }  // of the state
    const std::string& why() const { return why_; }     // it is away
    // No process of a lost agent may live after this. Another agent of the host waits for the end of such processes by
    // itself.
    Clock::time_point unsafe_until() const { return is_ready() ? Clock::time_point() : unsafe_until_; }

    // Where its agent keeps copies; "" and 0: nowhere.
    const std::string& copies() const { return copies_; }
    int port_of_copies() const { return port_; }
    int64_t copied_step() const { return copied_step_; }  // the newest that its ranks have copied, in any generation

    void connect();
    bool may_connect() const { return state_ == State::away && Clock::now() >= retry_at_; }
    // Frames that have come, hello and ping apart. Becomes `away` when the link or its process ends, or is silent.
    std::vector<Frame> turn(double silence_s);
    void send(Frame::Type type, std::string_view body) { link_.send(type, body); }
    void lose(const std::string& why, double silence_s);
    // The agent sees the end of the connection, and ends by itself.
    void close() { link_ = Link(); }
    bool has_ended() {
        agent_.ended();
        return !agent_.runs();
    }
    void leave_for(std::chrono::seconds time) { retry_at_ = Clock::now() + time; }
    std::string take_lines();  // whole lines that ssh or the agent has written on standard error

    // Descriptors to wait for, as {descriptor, for writing}.
    std::vector<std::pair<int, bool>> watched() const;

  private:
    void greet(const Frame& hello, double silence_s);
    void is_kept(const Frame& kept);
    void become_ready();

    std::vector<std::string> words_;
    bool direct_ = false;
    std::string keep_, copies_;
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
