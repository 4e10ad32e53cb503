// launch/process.h: processes that `tutti launch` and its agents start, and the signals that those receive, as
// descriptors to poll.
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
    bool reads = false;                                   // has a pipe as standard input; else /dev/null
    bool dies_with_parent = false;  // is killed when the thread that started it ends, however that ends
    // Signals that ask it to stop wait until it asks for them; else one that comes before it has begun kills it.
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
    // Error when no process can be made. A program that cannot be run ends with 127 and says why on its standard error.
    explicit Process(const Command& command);
    ~Process();  // kills what still runs
    Process(Process&&) noexcept;
    Process& operator=(Process&&) noexcept;

    bool runs() const { return pid_ > 0; }
    pid_t pid() const { return pid_; }
    // The parent's ends of the pipes.
    Descriptor in, out, err;

    void send(int signal) const;
    void kill_group() const;        // the process and all that it has started in its group
    std::optional<Ending> ended();  // asks without waiting; once

  private:
    pid_t pid_ = -1;
};

// Whether standard output is a pipe whose reader has closed it.
bool reader_has_ended();

// Reads what a pipe holds now into `text`; false at its end.
bool read_some(const Descriptor& pipe, std::string& text);

// Signals of this process as a descriptor. They stay blocked until the object ends; children of Process have the mask
// of before.
class SignalDescriptor {
  public:
    explicit SignalDescriptor(std::initializer_list<int> signals);
    ~SignalDescriptor();
    SignalDescriptor(const SignalDescriptor&) = delete;
    SignalDescriptor& operator=(const SignalDescriptor&) = delete;
    int fd() const { return descriptor_.fd(); }
    std::optional<int> next() const;  // never waits

  private:
    sigset_t before_{};
    Descriptor descriptor_;
};
}  // namespace tutti::launch
