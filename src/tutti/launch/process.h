// launch/process.h: child processes with pipes, and signals as a descriptor to poll.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tutti/launch/link.h"

namespace tutti::launch {

// The signals that ask a run to stop.
inline constexpr std::initializer_list<int> kStopSignals = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU};

struct Command {
    std::vector<std::string> words;                       // the program, searched in PATH, and its arguments
    std::map<std::string, std::string> environment = {};  // added to that of this process
    std::string directory = {};                           // "": that of this process
    bool reads = false;                                   // standard input is a pipe; else /dev/null
    bool dies_with_parent = false;  // the kernel kills the child when the thread that started it ends
    // The child starts with kStopSignals blocked: a signal before it has installed handlers does not kill it.
    bool holds_stops = false;
};

// How a process ended: with a code, or by a signal.
struct Ending {
    int code = 0, signal = 0;
};

// A child in a process group of its own, so that a signal of the terminal does not reach it.
class Process {
  public:
    Process() = default;
    // Error when fork() fails. A program that cannot be run ends with 127 and a message on its standard error.
    explicit Process(const Command& command);
    ~Process();  // kills the process group
    Process(Process&&) noexcept;
    Process& operator=(Process&&) noexcept;

    bool runs() const { return pid_ > 0; }
    pid_t pid() const { return pid_; }
    // The parent's ends of the pipes.
    Descriptor in, out, err;

    void send(int signal) const;
    void kill_group() const;        // SIGKILL to the process and its group
    std::optional<Ending> ended();  // does not block; returns the ending once

  private:
    pid_t pid_ = -1;
};

// Whether standard output is a pipe whose reader has closed it.
bool reader_has_ended();

// Reads what a pipe holds now into `text`; false at its end.
bool read_some(const Descriptor& pipe, std::string& text);

// A signalfd. The signals stay blocked until the object ends; a Process starts with an empty mask.
class SignalDescriptor {
  public:
    explicit SignalDescriptor(std::initializer_list<int> signals, std::initializer_list<int> more = {});
    ~SignalDescriptor();
    SignalDescriptor(const SignalDescriptor&) = delete;
    SignalDescriptor& operator=(const SignalDescriptor&) = delete;
    int fd() const { return descriptor_.fd(); }
    std::optional<int> next() const;  // does not block

  private:
    sigset_t before_{};
    Descriptor descriptor_;
};
}  // namespace tutti::launch
